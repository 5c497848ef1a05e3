// What this browser remembers: the theme, whether the page is live, and acknowledged numbers. Never an id or a key.

import { Observable } from "./observable.js";

const PREFIX = "later.";

/** Return a remembered text, or null; also where the browser refuses its storage. */
function recall(name) {
  try {
    return localStorage.getItem(PREFIX + name);
  } catch {
    return null;
  }
}

/** Remember a text; null forgets it. */
function remember(name, text) {
  try {
    if (text === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, text);
  } catch {
    // The setting lasts as long as the page.
  }
}

export const THEMES = ["system", "light", "dark"];
const recalled = recall("theme");
export const theme = new Observable(THEMES.includes(recalled) ? recalled : "system");
export const isLive = new Observable(recall("live") !== "off");
export const showsUtc = new Observable(false);

export function chooseTheme(name) {
  theme.value = name;
  remember("theme", name === "system" ? null : name);
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
}

export function setLive(on) {
  isLive.value = on;
  remember("live", on ? null : "off");
}

/** Return the acknowledged number of `name`. It counts no more once the number is smaller. */
export function acknowledged(name, count) {
  const number = Number(recall(`acknowledged.${name}`) ?? 0);
  if (count < number) remember(`acknowledged.${name}`, count ? String(count) : null);
  return Math.min(number, count);
}

export function acknowledge(name, count) {
  remember(`acknowledged.${name}`, count ? String(count) : null);
}
