// What a screen reader says when the page changes by itself.

/** Say `text` once. A text that was said before is said again. */
export function announce(text) {
  const region = document.getElementById("announcements");
  region.textContent = "";
  setTimeout(() => { region.textContent = text; }, 50);
}
