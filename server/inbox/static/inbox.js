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

  const clock = new Intl.DateTimeFormat("en", {
    weekday: "short", year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit",
    hourCycle: "h23", timeZoneName: "short",
  });

  const second = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

  // A time more than a week away is written as a date. The zone is the reader's, on the page and in the title.
  function showRelativeTimes(root = document) {
    for (const time of all("time[datetime]:not(.exact)", root)) {
      const at = new Date(time.dateTime);
      time.title = clock.format(at);
      time.textContent = formatRelative((at - Date.now()) / 1000) ?? time.title;
    }
  }

  // Times that matter to the minute are in the reader's zone; the zone that they were written in stays as the title.
  function showLocalTimes(root = document) {
    for (const time of all("time.local[datetime]:not([title])", root)) {
      time.title = time.textContent;
      time.textContent = clock.format(new Date(time.dateTime));
    }
    for (const time of all("time.clock[datetime]", root)) {
      const at = new Date(time.dateTime);
      time.title = clock.format(at);
      time.textContent = second.format(at);
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

  // Screen readers do not read a live region that is replaced, so its words, if new, are repeated in one that stays.
  let said = null;
  function sayNews() {
    const words = all("[data-news]").map((part) => part.textContent.replace(/\s+/g, " ").trim()).join(" ");
    if (said !== null && words !== said) document.getElementById("news").textContent = words;
    said = words;
  }
  document.addEventListener("htmx:afterSettle", sayNews);

  // A long graph is scrolled to the step that somebody has to look at.
  function showPoint() {
    const drawing = document.getElementById("graph");
    const point = [".waiting", ".failed", ".running"].map((mark) => drawing?.querySelector(mark)).find((found) => found);
    if (!point || drawing.scrollTop) return;
    const [inner, outer] = [point.getBoundingClientRect(), drawing.getBoundingClientRect()];
    drawing.scrollTop = Math.max(0, inner.top - outer.top - (outer.height - inner.height) / 2);
  }

  // What a person opened or scrolled to stays when the page of a plan shows news.
  let kept = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id !== "timeline") return;
    const drawing = document.getElementById("graph");
    kept = {
      open: all("details.step[open]").map((step) => step.id),
      place: drawing && [drawing.scrollLeft, drawing.scrollTop],
    };
  });
  document.addEventListener("htmx:afterSettle", () => {
    if (!kept) return;
    for (const id of kept.open) document.getElementById(id)?.setAttribute("open", "");
    const drawing = document.getElementById("graph");
    if (drawing && kept.place) [drawing.scrollLeft, drawing.scrollTop] = kept.place;
    kept = null;
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

  // A page that cannot be refreshed says when it was last up to date.
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

  // On a small screen Approve becomes active once all that it covers, from top to end without a gap, was on the screen.
  // Until then it can be focused, and says why it is not active. A small screen that is turned still counts as small.
  function approveWhenSeen() {
    const covered = all("[data-covered]");
    const buttons = all("button.approve");
    if (!covered.length || !buttons.length) return;
    const note = document.getElementById("until-seen");
    const small = window.matchMedia("(max-width: 40rem), (max-height: 30rem)");
    // Rows on pages that were not opened cannot have been on the screen.
    const isUnopened = buttons.some((button) => button.form?.dataset.unopened);
    const reason = isUnopened ? "Open the other pages of rows first; then the button becomes active." : "Scroll through all that this approves; then the button becomes active.";
    let seenTo = null;
    let isSeen = false;
    let isHeld = false;
    const wait = (event) => {
      if (!isHeld) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      window.scrollTo({ top: Math.max(0, seenTo - window.innerHeight / 2) });
    };
    const hold = (held) => {
      if (held === isHeld) return;
      isHeld = held;
      if (note) note.textContent = held ? reason : isSeen ? "All of it was on the screen: the button is active." : "";
      for (const button of buttons) {
        if (held) button.setAttribute("aria-disabled", "true");
        else button.removeAttribute("aria-disabled");
        if (note) button.setAttribute("aria-describedby", note.id);
      }
    };
    const look = () => {
      const top = Math.min(...covered.map((part) => part.getBoundingClientRect().top)) + window.scrollY;
      const end = Math.max(...covered.map((part) => part.getBoundingClientRect().bottom)) + window.scrollY;
      if (window.scrollY <= (seenTo ?? top) + 1) seenTo = Math.max(seenTo ?? 0, window.scrollY + window.innerHeight);
      isSeen ||= seenTo !== null && seenTo + 1 >= end && !isUnopened;
      hold(small.matches && !isSeen);
    };
    for (const button of buttons) button.addEventListener("click", wait, true);
    window.addEventListener("scroll", look, { passive: true });
    window.addEventListener("resize", look);
    look();
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
  sayNews();
  showPoint();
  setInterval(showRelativeTimes, 20000);
})();
