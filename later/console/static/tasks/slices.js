// Redrives and purges of many tasks, in slices: each is short, and one can stop between them.

import { post } from "../lib/api.js";
import { topicPath } from "../lib/router.js";

const SLICE = 1000;
const AHEAD_S = 10; // with a rate, so much is sent at a time: what is not sent yet stays dead when somebody stops
const HIGHEST_SLICE = 10_000; // the most that one call moves

/** Return how many tasks an action would move: `{count, isLeast, states, at}`; `at` is the store's time. */
export async function countMoves(action, filter, options) {
  const answer = await call(action, { ...filter, dry_run: true }, options);
  return { count: movedBy(action, answer), isLeast: Boolean(answer.more), states: answer.states, at: answer.at };
}

/** Return a filter of dead tasks without those that died at `at` or later: they were not counted. */
export function diedBefore(filter, at) {
  const isEarlier = filter.died_before && Date.parse(filter.died_before) < Date.parse(at);
  return { ...filter, died_before: isEarlier ? filter.died_before : at };
}

/** Move the tasks of a filter in slices, and call `onProgress(moved)` after each, until none is left.
 *
 * `filter` is `{topic, states, reason, died_after, died_before}`. At most `most` are moved, with a `rate` as fast as it
 * says. An abort of `signal` stops between two slices. Returns false if that left some.
 */
export async function moveAll(action, { filter, rate, most = Infinity, signal, onProgress }) {
  const startedAt = performance.now();
  let cursor;
  let moved = 0;
  while (moved < most) {
    const allowed = rate ? Math.max(moved ? 0 : 1, rate * ((performance.now() - startedAt) / 1000 + AHEAD_S) - moved) : SLICE;
    if (allowed < 1) await pause(Math.max(200, ((1 - allowed) / rate) * 1000), signal);
    if (signal.aborted) return false;
    if (allowed >= 1) {
      const limit = Math.min(HIGHEST_SLICE, Math.floor(allowed), most - moved);
      const paced = action === "redrive" && rate ? { rate } : {};
      const answer = await call(action, { ...filter, ...paced, limit, cursor });
      moved += movedBy(action, answer);
      onProgress(moved);
      if (!answer.more) return true;
      cursor = answer.cursor;
      if (rate) await pause(5000, signal);
    }
  }
  return true;
}

function call(action, { topic, ...filter }, options) {
  if (action === "redrive") return post("/redrive", { topic, ...filter }, options);
  return post(`${topicPath(topic)}/purge`, { states: ["dead"], ...filter }, options);
}

const movedBy = (action, answer) => (action === "redrive" ? answer.redriven : answer.purged);

function pause(ms, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
  });
}
