// A task's life as a line: created, due, its attempts, and what comes next or how it ended.

import { Time, duration } from "../lib/format.js";
import { html } from "../lib/html.js";
import { taskWords as words } from "../lib/words/tasks.js";
import { visible } from "./readable.js";

const isoOf = (seconds) => new Date(seconds * 1000).toISOString();

/** Return the known failures of a task, oldest first. */
export function failuresOf(task) {
  if (task.failures) return task.failures;
  return task.last_error ? [{ attempt: task.attempts, took_ms: null, ...task.last_error }] : [];
}

/** Return the stations `{kind, label, at, note}` of a task, in the order of time; `now` in ms. */
function stations(task, now) {
  const failures = failuresOf(task);
  const all = [];
  if (task.creat_time !== null) all.push({ kind: "past", label: words.created, at: isoOf(task.creat_time) });
  const waitsForFirst = task.state === "delay" && !task.attempts;
  if (task.execute_time !== null && !waitsForFirst) {
    all.push({ kind: "past", label: words.firstDue, at: isoOf(task.execute_time) });
  }
  if (task.dead_letter) {
    const { at, topic, reason } = task.dead_letter;
    all.push({ kind: "dead", label: words.diedIn, at, note: `${topic}: ${reason}` });
  }
  const inFlight = task.state === "unack" ? 1 : 0;
  const unknown = task.attempts - failures.length - inFlight;
  if (unknown > 0) all.push({ kind: "past", label: words.otherAttempts(unknown), note: words.otherAttemptsNote });
  const told = task.state === "dead" ? failures.slice(0, -1) : failures;
  for (const failure of told) {
    all.push({ kind: "failed", label: words.attempt(failure.attempt), at: failure.at, note: failureText(failure) });
  }
  all.push(lastStation(task, now));
  if (task.expires_at) all.push({ kind: "future", label: words.expires, at: task.expires_at });
  return all;
}

function lastStation(task, now) {
  if (task.state === "dead") {
    return { kind: "dead", label: words.died, at: task.died_at, note: task.last_error?.reason };
  }
  if (task.state === "unack") {
    return { kind: "now", label: words.inFlight(task.attempts), at: task.due_at, note: words.leaseEnds };
  }
  const isDue = Date.parse(task.due_at) <= now;
  const label = task.state === "error" ? words.retry(task.has_retry, task.max_retry)
    : task.attempts ? words.nextAttempt : words.due;
  return { kind: isDue ? "now" : "future", label, at: task.due_at, note: isDue ? words.waits : null };
}

/** Return the status or reason of a failure, and how long the attempt took. */
function failureText({ reason, status, took_ms }) {
  const what = status ? words.answered(status) : visible(reason);
  return took_ms === null || took_ms === undefined ? what : words.took(what, duration(took_ms / 1000));
}

/** Draw the stations of a task as a list that reads as a line. */
export function Life({ task, now }) {
  return html`<ol class="life" aria-label=${words.life}>
    ${stations(task, now).map((station, i) => html`<li key=${i} class=${`life-station life-${station.kind}`}>
      <span class="life-label">${station.label}</span>
      ${station.at && html`<span class="life-at"><${Time} at=${station.at} /></span>`}
      ${station.note && html`<span class="life-note">${station.note}</span>`}
    </li>`)}
  </ol>`;
}
