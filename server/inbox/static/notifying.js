// Notifications in this browser while the page of what waits is open. Every page works without it.
(() => {
  "use strict";
  const CHOSEN = "planwarden.notify";
  const MOST_AT_ONCE = 3;
  const section = document.getElementById("notifying");
  if (!section) return;
  const startButton = section.querySelector("[data-notifying-start]");
  const stopButton = section.querySelector("[data-notifying-stop]");
  const canNotify = window.isSecureContext && "Notification" in window;

  function say(text) {
    const element = section.querySelector("[data-notifying-says]");
    element.textContent = text;
    element.hidden = !text;
  }

  const isChosen = () => canNotify && Notification.permission === "granted"
    && localStorage.getItem(CHOSEN) === section.dataset.person;

  const BLOCKED = "This browser blocks notifications of this page. Allow them for this site in the browser's settings "
    + "(the sign beside the address), then reload the page.";

  function findObstacle() {
    if (!window.isSecureContext) return "Browsers notify only for pages over https or on this machine. Open the inbox at localhost, or over https.";
    if (!canNotify) return "This browser has no notifications of pages. On a phone, ntfy brings them.";
    return Notification.permission === "denied" ? BLOCKED : "";
  }

  function showState() {
    startButton.disabled = !canNotify;
    startButton.hidden = isChosen();
    stopButton.hidden = !isChosen();
    say(findObstacle() || (isChosen() ? "This browser is notified while this page is open." : ""));
  }

  startButton.addEventListener("click", async () => {
    const permission = await Notification.requestPermission();
    if (permission === "granted") localStorage.setItem(CHOSEN, section.dataset.person);
    showState();
    if (permission === "default") say("The browser asked, and nothing was chosen. Press the button again, and allow notifications.");
  });
  stopButton.addEventListener("click", () => {
    localStorage.removeItem(CHOSEN);
    showState();
    say("This browser is no longer notified.");
  });

  // The page's own refresh shows what is new while the person looks elsewhere.
  const read = () => new Map([...document.querySelectorAll("#waiting li.question")].map((item) => [item.id.slice(2), item.dataset]));
  const count = () => Number(document.getElementById("waiting")?.dataset.total ?? 0);
  let known = read();
  let total = count();

  function show(title, body, tag, path) {
    const notification = new Notification(title, { body, tag });
    notification.addEventListener("click", () => {
      notification.close();
      window.focus();
      window.location.assign(path);
    });
  }

  function notify(fresh, grown) {
    if (fresh.length && fresh.length <= MOST_AT_ONCE) {
      for (const [question, { title, message }] of fresh) {
        show(title, message, question, `/inbox/suspensions/${encodeURIComponent(question)}`);
      }
    } else if (fresh.length || grown) {
      show(`planwarden waits for you: ${count()} questions`, "", "waiting", "/inbox");
    }
  }

  document.addEventListener("htmx:afterSettle", () => {
    const now = read();
    const grown = count() > total;
    // On the first of several pages an older question may take the place of an answered one.
    const isNew = grown || count() <= now.size;
    const fresh = isNew ? [...now].filter(([question]) => !known.has(question)) : [];
    known = now;
    total = count();
    if (!isChosen() || document.hasFocus()) return;
    try {
      notify(fresh, grown);
    } catch (error) {
      // Chrome on Android has the constructor, and refuses it to pages.
      say(`The browser shows no notification: ${error.name}.`);
    }
  });

  for (const note of section.querySelectorAll("[data-without-script]")) note.hidden = true;
  showState();
})();
