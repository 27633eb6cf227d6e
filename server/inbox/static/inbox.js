// Keyboard shortcuts, relative times, lists that keep their checked boxes on refresh, and on phones an Approve that waits
// until all that it covers has been on the screen. Every page works without it.
(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const units = [[60, "second"], [3600, "minute"], [86400, "hour"], [604800, "day"]];
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

  function formatRelative(seconds) {
    const size = Math.abs(seconds);
    let unit = 1;
    for (const [limit, name] of units) {
      if (size < limit) return words.format(Math.round(seconds / unit), name);
      unit = limit;
    }
    return null;
  }

  function showRelativeTimes(root = document) {
    for (const time of all("time[datetime]:not(.exact)", root)) {
      const text = formatRelative((Date.parse(time.dateTime) - Date.now()) / 1000);
      if (!time.title) time.title = time.textContent;
      if (text !== null) time.textContent = text;
    }
  }

  const clock = new Intl.DateTimeFormat("en", {
    weekday: "short", year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit",
    hourCycle: "h23", timeZoneName: "short",
  });

  // Times that matter to the minute are in the reader's zone; the zone that they were written in stays as the title.
  function showLocalTimes(root = document) {
    for (const time of all("time.local[datetime]:not([title])", root)) {
      time.title = time.textContent;
      time.textContent = clock.format(new Date(time.dateTime));
    }
  }

  function proposeReaderZone() {
    const field = document.querySelector("input[data-reader-zone]");
    if (field && field.value === field.defaultValue) field.value = clock.resolvedOptions().timeZone || field.value;
  }

  function boxes() { return all("#waiting input[name=id]:not(:disabled)"); }

  function showSelectAll() {
    const label = document.getElementById("choose-all");
    if (!label) return;
    label.hidden = boxes().length < 2;
    label.firstElementChild.addEventListener("change", (event) => {
      for (const box of boxes()) box.checked = event.target.checked;
    });
  }

  function showTotalInTitle() {
    const list = document.getElementById("waiting");
    if (!list) return;
    const total = Number(list.dataset.total);
    document.title = document.title.replace(/^(\(\d+\) )?/, total ? `(${total}) ` : "");
  }

  function moveFocus(step) {
    const links = all(".open");
    if (!links.length) return;
    const now = links.findIndex((link) => link.closest("li").contains(document.activeElement));
    const next = now < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, now + step));
    links[next].focus();
    links[next].closest("li").scrollIntoView({ block: "nearest" });
  }

  function toggleBox() {
    const box = document.activeElement.closest?.("li")?.querySelector("input[type=checkbox]:not(:disabled)");
    if (box) box.checked = !box.checked;
  }

  const keys = {
    j: () => moveFocus(1),
    k: () => moveFocus(-1),
    x: toggleBox,
    a: () => document.querySelector("button.approve")?.focus(),
    r: () => document.querySelector("button.reject")?.focus(),
  };

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.repeat) return;
    const act = Object.hasOwn(keys, event.key) ? keys[event.key] : null;
    if (!act) return;
    event.preventDefault();
    act();
  });

  // What a person opened stays open when the page of a plan shows news.
  let openSteps = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id !== "timeline") return;
    openSteps = new Map(all("details.step").map((step) => [step.id, step.open]));
  });
  document.addEventListener("htmx:afterSettle", () => {
    for (const [id, open] of openSteps ?? []) {
      const step = document.getElementById(id);
      if (step && open) step.open = true;
    }
    openSteps = null;
  });
  document.addEventListener("input", (event) => {
    const slider = event.target.closest(".slider input[type=range]");
    if (slider) slider.parentElement.querySelector("output").textContent = `${slider.value} of ${slider.max}`;
  });

  let checkedIds = new Set();
  let focusedId = null;
  let focusedAddress = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!["waiting", "plans"].includes(event.detail.target.id)) return;
    checkedIds = new Set(boxes().filter((box) => box.checked).map((box) => box.value));
    focusedId = document.activeElement?.closest?.("#waiting li, #plans li")?.id ?? null;
    focusedAddress = document.activeElement?.getAttribute?.("href") ?? null;
  });
  document.addEventListener("htmx:afterSettle", () => {
    for (const box of boxes()) if (checkedIds.has(box.value)) box.checked = true;
    if (focusedId) {
      const links = all("a[href]", document.getElementById(focusedId) ?? document.createElement("li"));
      const same = links.find((link) => link.getAttribute("href") === focusedAddress);
      (same ?? links.find((link) => link.classList.contains("open")))?.focus({ preventScroll: true });
    }
    checkedIds = new Set();
    focusedId = focusedAddress = null;
    showSelectAll();
    showTotalInTitle();
    showRelativeTimes();
    showLocalTimes();
  });

  // A page that cannot be refreshed says from when it is.
  let currentAt = new Date();
  document.addEventListener("htmx:afterRequest", (event) => {
    const banner = document.getElementById("unreachable");
    if (!banner) return;
    if (event.detail.successful) {
      currentAt = new Date();
      banner.hidden = true;
      banner.replaceChildren();
    } else if (banner.hidden) {
      const time = currentAt.toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
      const command = document.createElement("code");
      command.textContent = "planwarden inbox";
      banner.hidden = false;
      const reason = event.detail.xhr.status ? banner.dataset.broken : banner.dataset.gone;
      banner.append(`${reason} This page is from ${time}; run `, command, ".");
    }
  });

  // On a small screen Approve becomes active when everything from the top of what it covers to its end was on the screen
  // without a gap. It can be focused all the time, and says why it is not active.
  function approveWhenSeen() {
    const covered = all("[data-covered]");
    const buttons = all("button.approve");
    if (!covered.length || !buttons.length || !window.matchMedia("(max-width: 40rem)").matches) return;
    const note = document.getElementById("until-seen");
    // Rows on pages that were not opened cannot have been on the screen.
    const isUnopened = buttons.some((button) => button.form?.dataset.unopened);
    let seenTo = null;
    const wait = (event) => {
      event.preventDefault();
      event.stopImmediatePropagation();
      window.scrollTo({ top: Math.max(0, seenTo - window.innerHeight / 2) });
    };
    const look = () => {
      const top = Math.min(...covered.map((part) => part.getBoundingClientRect().top)) + window.scrollY;
      const end = Math.max(...covered.map((part) => part.getBoundingClientRect().bottom)) + window.scrollY;
      if (window.scrollY <= (seenTo ?? top) + 1) seenTo = Math.max(seenTo ?? 0, window.scrollY + window.innerHeight);
      if (seenTo === null || seenTo + 1 < end || isUnopened) return;
      window.removeEventListener("scroll", look);
      window.removeEventListener("resize", look);
      for (const button of buttons) {
        button.removeAttribute("aria-disabled");
        button.removeEventListener("click", wait, true);
      }
      if (note && note.textContent) note.textContent = "All of it was on the screen: the button is active.";
    };
    for (const button of buttons) {
      button.setAttribute("aria-disabled", "true");
      button.addEventListener("click", wait, true);
      if (note) button.setAttribute("aria-describedby", note.id);
    }
    window.addEventListener("scroll", look, { passive: true });
    window.addEventListener("resize", look);
    look();
    if (note && buttons[0].hasAttribute("aria-disabled")) note.textContent = isUnopened ? "Open the other pages of rows first; then the button becomes active." : "Scroll through all that this approves; then the button becomes active.";
  }

  // A second press must not send the form again while the first request is pending.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.dataset.sent) event.preventDefault();
    if (form.method === "post") form.dataset.sent = "yes";
  });
  window.addEventListener("pageshow", () => { for (const form of all("form")) delete form.dataset.sent; });

  for (const hint of all(".keys")) hint.hidden = false;
  showSelectAll();
  showRelativeTimes();
  showLocalTimes();
  proposeReaderZone();
  approveWhenSeen();
  setInterval(showRelativeTimes, 20000);
})();
