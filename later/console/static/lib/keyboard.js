// Keys that act: none with a modifier, none while somebody types or answers a dialog.

import { useEffect, useRef } from "./html.js";
import { Observable } from "./observable.js";

const SEQUENCE_MS = 1500;
let first = "";
let firstAt = 0;

/** The keys that act now: `{key, help, run}`; later ones win. */
export const shortcuts = new Observable([]);

/** Let `key` (`r`, or `g t`) call `run` while the component is shown. `help` is for the list. */
export function useShortcut(key, run, help) {
  const latest = useRef(run);
  latest.current = run;
  useEffect(() => {
    const shortcut = { key, help, run: (event) => latest.current(event) };
    shortcuts.value = [...shortcuts.value, shortcut];
    return () => { shortcuts.value = shortcuts.value.filter((other) => other !== shortcut); };
  }, [key, help]);
}

/** Return whether keys are text for an element. */
export function isTyping(target) {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target.matches("textarea, select")) return true;
  return target.matches("input:not([type=checkbox], [type=radio], [type=button], [type=submit])");
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
  if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
  const pair = first && event.timeStamp - firstAt < SEQUENCE_MS ? `${first} ${event.key}` : "";
  first = "";
  const find = (key) => shortcuts.value.findLast((shortcut) => shortcut.key === key);
  const found = (pair && find(pair)) || find(event.key);
  if (found) {
    if (found.run(event) !== false) event.preventDefault();
  } else if (shortcuts.value.some((shortcut) => shortcut.key.startsWith(`${event.key} `))) {
    first = event.key;
    firstAt = event.timeStamp;
  }
});
