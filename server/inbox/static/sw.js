// Shows a notification when the browser's push service brings one, and opens the question when a person clicks on it.
"use strict";

self.addEventListener("install", () => self.skipWaiting());

self.addEventListener("push", (event) => {
  const { title, message, question } = event.data.json();
  event.waitUntil(self.registration.showNotification(title, { body: message, tag: question || "waiting" }));
});

self.addEventListener("notificationclick", (event) => {
  const { tag } = event.notification;
  event.notification.close();
  event.waitUntil(open(tag === "waiting" ? "/inbox" : `/inbox/suspensions/${encodeURIComponent(tag)}`));
});

async function open(path) {
  const pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const page = pages.find((found) => new URL(found.url).pathname === path);
  return page ? page.focus() : self.clients.openWindow(path);
}
