// The focus. Where its element goes away, it moves to what was nearest, so that the next key goes on from there.

const CONTROLS = "a[href], button, input:enabled, select, textarea, summary, [tabindex='0']";
let last = null;

/** Return what a row is reached by: a link or itself, no button, which a key too many would press. */
export function rowTarget(row) {
  const link = row.querySelector("th a") ?? row.querySelector("a");
  if (!link) row.tabIndex = -1;
  return link ?? row;
}

/** Return a function that gives the focus back to what has it now, or to what is nearest. */
export const keepFocus = () => restore.bind(null, placeOf(document.activeElement));

/** Return an element and its neighbours, nearest first: those after it, those before it, and so on for its parents. */
function placeOf(element) {
  const near = [element];
  for (let one = element; one.parentElement && one.id !== "main"; one = one.parentElement) {
    const all = [...one.parentElement.children];
    const at = all.indexOf(one);
    near.push(...all.slice(at + 1), ...all.slice(0, at).reverse(), one.parentElement);
  }
  return near;
}

function restore(near) {
  const find = (one) => (one.matches("tr") ? rowTarget(one) : one.matches(CONTROLS) ? one : one.querySelector(CONTROLS));
  const rest = near.slice(1).filter((one) => one.isConnected);
  const target = near[0].isConnected ? near[0] : rest.map(find).find(Boolean);
  (target ?? document.getElementById("main")).focus();
}

addEventListener("focusin", ({ target }) => { last = placeOf(target); });
addEventListener("pointerdown", () => { last = null; }, true);
new MutationObserver((records) => {
  if (!last || document.activeElement !== document.body) return;
  const isGone = ({ removedNodes }) => [...removedNodes].some((node) => node.contains(last[0]));
  if (records.some(isGone)) restore(last);
}).observe(document.documentElement, { childList: true, subtree: true });
