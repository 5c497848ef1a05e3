// Times between the API, in RFC 3339, and inputs of a browser, which know local time alone.

const two = (number) => String(number).padStart(2, "0");

/** Return a time (ms) for an input of the type `datetime-local`; empty if there is none. */
export function toInput(ms) {
  if (ms === null || Number.isNaN(ms)) return "";
  const date = new Date(ms);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day}T${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** Return the time of such an input in RFC 3339, or null if it is empty. */
export function fromInput(text) {
  const ms = text ? Date.parse(text) : NaN;
  return Number.isNaN(ms) ? null : new Date(ms).toISOString();
}
