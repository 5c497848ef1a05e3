// The server's time. The browser's clock may be an hour off, so it only measures how much time has passed.

let offsetMs = null;
let isExact = false;

/** Return the server's time in ms; before the first answer, the browser's. */
export function serverNow() {
  return offsetMs === null ? Date.now() : performance.now() + offsetMs;
}

/** Learn the time from an answer: its `at`, which is exact, or else its `Date`, which is in whole seconds. */
export function learnTime(at, dateHeader) {
  const exact = typeof at === "string" ? Date.parse(at) : NaN;
  const coarse = dateHeader ? Date.parse(dateHeader) : NaN;
  if (!Number.isNaN(exact)) {
    offsetMs = exact - performance.now();
    isExact = true;
  } else if (!Number.isNaN(coarse)) {
    const seen = coarse + 500 - performance.now();
    if (offsetMs === null || !isExact || Math.abs(seen - offsetMs) > 2000) offsetMs = seen;
  }
}
