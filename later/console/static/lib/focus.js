// The focus. Where its element goes away, it moves to what was nearest, so that the next key goes on from there.

const CONTROLS = "a[href], button, input:enabled, select, textarea, summary, [tabindex='0']";
let last = null;

/** Return what a row is reached by: its first link, or itself. No button, which a key too many would press. */
export function rowTarget(row) {
  const link = row.querySelector("th a") ?? row.querySelector("a");
  if (!link) row.tabIndex = -1;
  return link ?? row;
}

/** Return a function that gives the focus back to what has it now, or to what is nearest. */
export function keepFocus() {
  return restore.bind(null, placeOf(document.activeElement));
}

/** An element and its neighbours, those first that share most of its parents; of these the ones after it first. */
function placeOf(element) {
  const near = [];
  for (let one = element; one && one.id !== "main"; one = one.parentElement) {
    for (let next = one.nextElementSibling; next; next = next.nextElementSibling) near.push(next);
    for (let before = one.previousElementSibling; before; before = before.previousElementSibling) near.push(before);
    near.push(one.parentElement);
  }
  return { element, near };
}

function restore({ element, near }) {
  const find = (one) => (one.matches("tr") ? rowTarget(one) : one.matches(CONTROLS) ? one : one.querySelector(CONTROLS));
  const target = element.isConnected ? element : near.filter((one) => one?.isConnected).map(find).find(Boolean);
  (target ?? document.getElementById("main")).focus();
}

addEventListener("focusin", ({ target }) => { last = placeOf(target); });
addEventListener("pointerdown", () => { last = null; }, true);
new MutationObserver((records) => {
  if (!last || document.activeElement !== document.body) return;
  const isGone = ({ removedNodes }) => [...removedNodes].some((node) => node.contains(last.element));
  if (records.some(isGone)) restore(last);
}).observe(document.documentElement, { childList: true, subtree: true });
