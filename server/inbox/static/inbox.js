// Comfort for the inbox: keys, relative times, and lists that keep their ticks when they refresh. Everything works without it.
(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const units = [[60, "second"], [3600, "minute"], [86400, "hour"], [604800, "day"]];
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

  function relative(seconds) {
    const size = Math.abs(seconds);
    let unit = 1;
    for (const [limit, name] of units) {
      if (size < limit) return words.format(Math.round(seconds / unit), name);
      unit = limit;
    }
    return null;
  }

  function tellTimes(root = document) {
    for (const time of all("time[datetime]:not(.exact)", root)) {
      const text = relative((Date.parse(time.dateTime) - Date.now()) / 1000);
      if (!time.title) time.title = time.textContent;
      if (text !== null) time.textContent = text;
    }
  }

  function boxes() { return all("#waiting input[name=id]:not(:disabled)"); }

  function offerAll() {
    const label = document.getElementById("choose-all");
    if (!label) return;
    label.hidden = boxes().length < 2;
    label.firstElementChild.addEventListener("change", (event) => {
      for (const box of boxes()) box.checked = event.target.checked;
    });
  }

  function tellTotal() {
    const list = document.getElementById("waiting");
    if (!list) return;
    const total = Number(list.dataset.total);
    document.title = document.title.replace(/^(\(\d+\) )?/, total ? `(${total}) ` : "");
  }

  function move(step) {
    const links = all(".open");
    if (!links.length) return;
    const now = links.findIndex((link) => link.closest("li").contains(document.activeElement));
    const next = now < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, now + step));
    links[next].focus();
    links[next].closest("li").scrollIntoView({ block: "nearest" });
  }

  function toggle() {
    const box = document.activeElement.closest?.("li")?.querySelector("input[type=checkbox]:not(:disabled)");
    if (box) box.checked = !box.checked;
  }

  const keys = {
    j: () => move(1),
    k: () => move(-1),
    x: toggle,
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

  let ticked = new Set();
  let focused = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id !== "waiting") return;
    ticked = new Set(boxes().filter((box) => box.checked).map((box) => box.value));
    focused = document.activeElement?.closest?.("#waiting li")?.id ?? null;
  });
  document.addEventListener("htmx:afterSettle", () => {
    for (const box of boxes()) if (ticked.has(box.value)) box.checked = true;
    if (focused) document.getElementById(focused)?.querySelector(".open")?.focus({ preventScroll: true });
    ticked = new Set();
    focused = null;
    offerAll();
    tellTotal();
    tellTimes();
  });

  // A second press must not send a form again while the first is on its way.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.dataset.sent) event.preventDefault();
    if (form.method === "post") form.dataset.sent = "yes";
  });
  window.addEventListener("pageshow", () => { for (const form of all("form")) delete form.dataset.sent; });

  for (const hint of all(".keys")) hint.hidden = false;
  offerAll();
  tellTimes();
  setInterval(tellTimes, 20000);
})();
