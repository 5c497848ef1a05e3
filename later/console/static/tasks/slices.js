// Redrives and purges of many tasks: slices one after the other, so that each is short and one can stop between them.

import { post, serverNow } from "../lib/api.js";
import { topicPath } from "../lib/router.js";

const SLICE = 1000;
const AHEAD_S = 10; // with a rate, so much is sent at a time: what is not sent yet stays dead when somebody stops
const HIGHEST_SLICE = 10_000; // the most that one call moves

/** Return how many tasks an action would move: `{count, isLeast}`, by a dry run. */
export async function countMoves(action, filter, options) {
  const answer = await call(action, { ...filter, dry_run: true }, options);
  return { count: movedBy(action, answer), isLeast: Boolean(answer.more) };
}

/** Move the tasks of a filter in slices, and call `onProgress(moved)` after each, until none is left.
 *
 * `filter` is `{topic, reason, died_after, died_before}`. Tasks that die meanwhile are left alone. With a `rate`, slices
 * follow each other as fast as it says. An abort of `signal` stops between two slices. Returns how many were moved.
 */
export async function moveAll(action, { filter, rate, signal, onProgress }) {
  const before = { died_before: new Date(serverNow() + 1000).toISOString() };
  const startedAt = performance.now();
  let cursor;
  let moved = 0;
  for (;;) {
    const allowed = rate ? Math.max(moved ? 0 : 1, rate * ((performance.now() - startedAt) / 1000 + AHEAD_S) - moved) : SLICE;
    if (allowed < 1) await pause(Math.max(200, ((1 - allowed) / rate) * 1000), signal);
    if (signal.aborted) return moved;
    if (allowed >= 1) {
      const limit = Math.min(HIGHEST_SLICE, Math.floor(allowed));
      const paced = action === "redrive" && rate ? { rate } : {};
      const answer = await call(action, { ...before, ...filter, ...paced, limit, cursor });
      moved += movedBy(action, answer);
      onProgress(moved);
      if (!answer.more) return moved;
      cursor = answer.cursor;
      if (rate) await pause(5000, signal);
    }
  }
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
