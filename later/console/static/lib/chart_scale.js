// The arithmetic of charts: slots joined until they can be seen, and round numbers and hours for axes.

import { showsUtc } from "./settings.js";

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const X_STEPS = [
  10 * SECOND, MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR,
  DAY, 2 * DAY,
];
const JOINED = [1, 2, 3, 6, 12, 24, 36, 72, 144, 288];
const LOG_TICKS = [1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000, 8_640_000, 86_400_000, 864_000_000];

const JOIN = {
  sum: (values) => values.reduce((sum, value) => sum + value, 0),
  max: (values) => Math.max(...values),
  rate: (values, step_s) => values.reduce((sum, value) => sum + value, 0) / (values.length * step_s),
};

/** Join slots so that at most `most` are left. Where all of a joined slot are null, so is it. */
export function join({ from, step_s, series, how, most }) {
  const length = series[0]?.values.length ?? 0;
  const factor = JOINED.find((n) => Math.ceil(length / n) <= most) ?? Math.ceil(length / Math.max(1, most));
  const stepMs = step_s * 1000 * factor;
  const lead = factor > 1 ? Math.round((from % stepMs) / (step_s * 1000)) : 0;
  const bins = Math.ceil((length + lead) / factor);
  const joinOne = (values) => Array.from({ length: bins }, (_, i) => {
    const slots = values.slice(Math.max(0, i * factor - lead), (i + 1) * factor - lead).filter((value) => value !== null);
    return slots.length ? JOIN[how](slots, step_s) : null;
  });
  const start = from - lead * step_s * 1000;
  return { start, stepMs, bins, factor, series: series.map((one) => ({ ...one, values: joinOne(one.values) })) };
}

/** Return at most four round numbers from 0 to a little more than `max`; whole ones for what is counted. */
export function linearTicks(max, isWhole) {
  const top = max > 0 ? max : 1;
  const size = 10 ** Math.floor(Math.log10(top / 3));
  const round = [1, 2, 2.5, 5, 10].map((n) => n * size).find((n) => top / n <= 3.4);
  const step = isWhole ? Math.ceil(round) : round;
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, i) => i * step);
}

/** Return at most five durations (s) around `min` and `max`, each some times the one before. */
export function logTicks(min, max) {
  const first = Math.max(0, LOG_TICKS.findLastIndex((tick) => tick <= min));
  const found = LOG_TICKS.findIndex((tick) => tick >= max);
  const last = Math.max(first + 2, found < 0 ? LOG_TICKS.length - 1 : found);
  const every = Math.ceil((last - first) / 4);
  const end = first + Math.ceil((last - first) / every) * every;
  return LOG_TICKS.slice(first, end + 1).filter((_, i) => i % every === 0);
}

/** Return times at whole hours or minutes of the shown clock, at most `most`: `{at, isDay}`. */
export function timeTicks(from, to, most) {
  const step = X_STEPS.find((size) => (to - from) / size <= most) ?? X_STEPS.at(-1);
  const midnight = new Date(from);
  if (showsUtc.value) midnight.setUTCHours(0, 0, 0, 0);
  else midnight.setHours(0, 0, 0, 0);
  const ticks = [];
  for (let at = midnight.getTime(); at <= to; at += step) {
    const hour = new Date(at)[showsUtc.value ? "getUTCHours" : "getHours"]();
    if (at >= from) ticks.push({ at, isDay: step >= HOUR && hour === 0 && at % MINUTE === 0 });
  }
  return ticks;
}
