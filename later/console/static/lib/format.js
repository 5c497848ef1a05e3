// Numbers and times for people. Numbers are English; clocks are those of the browser's locale.

import { html, useEffect, useState } from "./html.js";
import { useObservable } from "./observable.js";
import { serverNow } from "./server_clock.js";
import { showsUtc } from "./settings.js";
import { words } from "./words.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const precise = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

const isNumber = (n) => typeof n === "number" && Number.isFinite(n);

/** Return a number with all its digits; a dash if there is none. */
export function count(n) {
  return isNumber(n) ? whole.format(n) : "–";
}

/** Return a sentence of the API as one that stands alone: those do not begin with a name. */
export const capitalized = (sentence) => sentence.charAt(0).toUpperCase() + sentence.slice(1);

/** Return a number in at most five characters or so: 12,345 is 12.3K. */
export function compact(n) {
  if (!isNumber(n)) return "–";
  return Math.abs(n) < 10_000 ? whole.format(n) : short.format(n);
}

/** Return a rate or another fraction with three digits. */
export function decimal(n) {
  if (!isNumber(n)) return "–";
  return Math.abs(n) >= 1000 ? compact(n) : precise.format(n);
}

const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function bytes(n) {
  if (!isNumber(n)) return "–";
  let unit = 0;
  let value = n;
  while (value >= 1000 && unit < BYTE_UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit ? precise.format(value) : whole.format(value)} ${BYTE_UNITS[unit]}`;
}

const UNITS = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];

/** Return seconds in their two largest units: `2 ms`, `1.5 s`, `3 min 20 s`, `2 d 4 h`. */
export function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  const sign = seconds < 0 ? "−" : "";
  const s = Math.abs(seconds);
  if (s === 0) return "0 s";
  if (s < 0.001) return `${sign}<1 ms`;
  if (s < 0.9995) return `${sign}${precise.format(Math.round(s * 1e5) / 100)} ms`;
  if (s < 9.95) return `${sign}${precise.format(Math.round(s * 10) / 10)} s`;
  const rounded = Math.round(s);
  const first = UNITS.findIndex(([, size]) => rounded >= size);
  const [unit, size] = UNITS[first];
  const major = Math.floor(rounded / size);
  const [nextUnit, nextSize] = UNITS[first + 1] ?? [];
  const minor = nextUnit && major < 100 ? Math.floor((rounded - major * size) / nextSize) : 0;
  return `${sign}${whole.format(major)} ${unit}${minor ? ` ${minor} ${nextUnit}` : ""}`;
}

/** Return a time (ms) as seen from now, in one unit as in the API's sentences: `in 3 min`, `2 h ago`. */
export function relative(ms, now = serverNow()) {
  if (!isNumber(ms)) return "–";
  const s = (ms - now) / 1000;
  if (Math.abs(s) < 1) return words.time.now;
  const [unit, size] = UNITS.find(([, size]) => Math.abs(s) >= 2 * size) ?? UNITS[3];
  const text = `${whole.format(Math.round(Math.abs(s) / size))} ${unit}`;
  return s > 0 ? words.time.ahead(text) : words.time.ago(text);
}

const LOCAL = { dateStyle: "medium", timeStyle: "medium" };

/** Return a time (ms) on the locale's clock, or as UTC in the form of the API. */
function absolute(ms, utc = showsUtc.value) {
  if (!isNumber(ms)) return "–";
  if (utc) return new Date(ms).toISOString().replace(/\.\d+/, "").replace("T", " ");
  return new Intl.DateTimeFormat(undefined, LOCAL).format(ms);
}

/** Return the hour and minute of a time (ms), with the day if it is not today. */
export function clock(ms, { day = false, seconds = false } = {}) {
  const utc = showsUtc.value;
  const parts = {
    hour: "2-digit", minute: "2-digit", ...(seconds ? { second: "2-digit" } : {}),
    ...(day ? { weekday: "short", day: "numeric" } : {}), ...(utc ? { timeZone: "UTC", hourCycle: "h23" } : {}),
  };
  return new Intl.DateTimeFormat(undefined, parts).format(ms);
}

/** Return the milliseconds of a time of the API, or of a number of ms; null if there is none. */
export function parseTime(at) {
  if (isNumber(at)) return at;
  const ms = typeof at === "string" ? Date.parse(at) : NaN;
  return Number.isNaN(ms) ? null : ms;
}

/** A time: relative, with the local time as title; the key `u` shows all times in UTC. */
export function Time({ at }) {
  const utc = useObservable(showsUtc);
  const ms = parseTime(at);
  const [, redraw] = useState(0);
  const near = ms !== null && Math.abs(ms - serverNow()) < 3_600_000;
  useEffect(() => {
    if (ms === null || utc) return undefined;
    const timer = setInterval(() => redraw((n) => n + 1), near ? 1000 : 60_000);
    return () => clearInterval(timer);
  }, [ms, utc, near]);
  if (ms === null) return html`<span class="muted">–</span>`;
  const text = utc ? absolute(ms, true) : relative(ms);
  return html`<time class="time" datetime=${new Date(ms).toISOString()} title=${absolute(ms, false)}>${text}</time>`;
}
