// Keyboard shortcuts, relative times, and lists that keep their checked boxes on refresh. Every page works without it.
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

  let checkedIds = new Set();
  let focusedId = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id !== "waiting") return;
    checkedIds = new Set(boxes().filter((box) => box.checked).map((box) => box.value));
    focusedId = document.activeElement?.closest?.("#waiting li")?.id ?? null;
  });
  document.addEventListener("htmx:afterSettle", () => {
    for (const box of boxes()) if (checkedIds.has(box.value)) box.checked = true;
    if (focusedId) document.getElementById(focusedId)?.querySelector(".open")?.focus({ preventScroll: true });
    checkedIds = new Set();
    focusedId = null;
    showSelectAll();
    showTotalInTitle();
    showRelativeTimes();
  });

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
  setInterval(showRelativeTimes, 20000);
})();
