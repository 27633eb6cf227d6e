// Notifications in this browser: while the page of what waits is open, and through the browser's push service when not.
// Every page works without it.
(() => {
  "use strict";
  const CHOSEN = "planwarden.notify";
  const RENEWED = "planwarden.renewed";
  const MOST_AT_ONCE = 3;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const csrf = document.querySelector("form.who input[name=csrf]")?.value;
  const section = document.getElementById("browsers");
  const canNotify = window.isSecureContext && "Notification" in window && "serviceWorker" in navigator;
  const canPush = canNotify && "PushManager" in window;

  async function start() {
    await navigator.serviceWorker.register("/sw.js", { scope: "/" });
    return navigator.serviceWorker.ready;
  }

  async function findSubscription() {
    const registration = canPush ? await navigator.serviceWorker.getRegistration("/") : null;
    return (await registration?.pushManager.getSubscription()) ?? null;
  }

  // A browser that was chosen belongs to the newest session in it, so that logging out ends it.
  async function renew() {
    if (!csrf || !canPush || Notification.permission !== "granted") return;
    if (sessionStorage.getItem(RENEWED) === csrf.slice(0, 16)) return;
    const subscription = await findSubscription();
    if (!subscription) return;
    const body = new URLSearchParams({ csrf, endpoint: subscription.endpoint });
    const answer = await fetch("/inbox/browsers/renew", { method: "POST", body });
    if (answer.ok) sessionStorage.setItem(RENEWED, csrf.slice(0, 16));
  }
  renew().catch(() => {});
  if (!section) return;

  const form = section.querySelector("[data-browser-form]");
  const startButton = section.querySelector("[data-browser-start]");
  const hasPush = canPush && section.dataset.push === "yes";
  const stopButton = section.querySelector("[data-browser-stop]");

  function say(text) {
    const element = section.querySelector("[data-browser-says]");
    element.textContent = text;
    element.hidden = !text;
  }

  const isChosen = () => canNotify && Notification.permission === "granted"
    && localStorage.getItem(CHOSEN) === section.dataset.person;

  async function findListed(subscription) {
    if (!subscription) return null;
    const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(subscription.endpoint));
    const mark = [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    return section.querySelector(`[data-browser="${mark}"]`);
  }

  const BLOCKED = "This browser blocks notifications of this page. Allow them for this site in the browser's settings "
    + "(the sign beside the address), then reload the page.";

  function findObstacle() {
    if (!window.isSecureContext) return "Browsers notify only for pages over https or on this machine. Open the inbox at localhost, or over https.";
    if (!canNotify) return "This browser has no notifications here. On an iPhone or iPad, add this page to the Home Screen and open it there.";
    return Notification.permission === "denied" ? BLOCKED : "";
  }

  async function showState() {
    const obstacle = findObstacle();
    const listed = obstacle ? null : await findListed(await findSubscription());
    if (listed) listed.querySelector("[data-browser-here]").hidden = false;
    startButton.disabled = !canNotify;
    startButton.hidden = Boolean(listed) || (isChosen() && !hasPush);
    stopButton.hidden = Boolean(listed) || !isChosen();
    if (obstacle) say(obstacle);
    else if (listed) say("This browser is notified, also while no page of the inbox is open.");
    else if (isChosen()) say("This browser is notified while this page is open.");
  }

  async function subscribe(registration) {
    const old = await registration.pushManager.getSubscription();
    // It was another person's, or has ended here.
    if (old && !(await findListed(old))) await old.unsubscribe();
    const answer = await fetch("/inbox/browsers/key", { method: "POST", body: new URLSearchParams({ csrf }) });
    if (!answer.ok) throw new DOMException("", "ServerError");
    const padded = (await answer.json()).key.replaceAll("-", "+").replaceAll("_", "/");
    const applicationServerKey = Uint8Array.from(atob(padded), (character) => character.charCodeAt(0));
    return registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey });
  }

  async function choose() {
    const permission = await Notification.requestPermission();
    if (permission !== "granted") {
      return say(permission === "denied" ? BLOCKED : "The browser asked, and nothing was chosen. Press the button again, and allow notifications.");
    }
    localStorage.setItem(CHOSEN, section.dataset.person);
    const registration = await start();
    await showState();
    if (!hasPush) return;
    try {
      const { endpoint, keys } = (await subscribe(registration)).toJSON();
      Object.entries({ endpoint, ...keys }).forEach(([name, value]) => {
        const field = form.querySelector(`input[name="${name}"]`);
        if (field) field.value = value;
      });
    } catch (error) {
      return say(`This browser is notified while this page is open, but not otherwise: it did not reach its push service (${error.name}).`);
    }
    form.requestSubmit(startButton);
  }

  startButton.addEventListener("click", (event) => {
    event.preventDefault();
    choose().catch((error) => say(`The browser refused: ${error.name}.`));
  });
  stopButton.addEventListener("click", () => {
    localStorage.removeItem(CHOSEN);
    say("This browser is not notified any more.");
    startButton.hidden = false;
    stopButton.hidden = true;
  });
  section.addEventListener("submit", async (event) => {
    const item = event.target.closest("[data-browser]");
    if (!item || item.querySelector("[data-browser-here]").hidden) return;
    event.preventDefault();
    localStorage.removeItem(CHOSEN);
    await (await findSubscription())?.unsubscribe().catch(() => {});
    event.target.submit();
  });

  // While the page is open and somebody looks elsewhere, its own refresh says what is new.
  const read = () => new Map(all("#waiting li.question").map((item) => [item.id.slice(2), item.dataset]));
  const count = () => Number(document.getElementById("waiting")?.dataset.total ?? 0);
  let known = read();
  let total = count();

  async function notify(fresh, grown) {
    const registration = await start();
    const show = (title, body, tag) => registration.showNotification(title, { body, tag });
    if (fresh.length && fresh.length <= MOST_AT_ONCE) {
      for (const [question, { title, message }] of fresh) await show(title, message, question);
    } else if (fresh.length || grown) {
      await show(`planwarden waits for you: ${count()} questions`, "", "waiting");
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
    if (isChosen() && !document.hasFocus()) notify(fresh, grown).catch((error) => say(`The browser shows no notification: ${error.name}.`));
  });

  for (const note of section.querySelectorAll("[data-without-script]")) note.hidden = true;
  showState().catch(() => {});
})();
