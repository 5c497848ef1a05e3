// A task: why it has not run yet, its life, what it carries, and what can be done with it.

import { ApiError, post, serverNow } from "../lib/api.js";
import { Badge, Notice, Panel, Sentence, Table } from "../lib/components.js";
import { Time, capitalized, count, duration } from "../lib/format.js";
import { html, useRef, useState } from "../lib/html.js";
import { announce } from "../lib/live_region.js";
import { usePoll } from "../lib/poll.js";
import { Link, topicPath } from "../lib/router.js";
import { taskWords as words } from "../lib/words/tasks.js";
import { TaskActions } from "../tasks/actions.js";
import { Commands, Content, Names } from "../tasks/content.js";
import { Life, failuresOf } from "../tasks/life.js";
import { NotHere } from "../tasks/not_here.js";
import { Page } from "../tasks/parts.js";
import { SHOWN, visible } from "../tasks/readable.js";

const CHANGING = ["state", "attempts", "due_at", "died_at"];
const LEVELS = { delay: "ok", unack: "ok", error: "warn", dead: "bad" };

export function title({ params }) {
  return words.title(params.id);
}

export default function TaskPage({ params, me }) {
  const { id } = params;
  const seen = useRef({});
  const [done, setDone] = useState(null);
  const poll = usePoll((options) => load(id, seen.current, options), 3000, [id]);
  const told = (text, hasEnded) => {
    announce(text);
    setDone({ text, hasEnded });
    poll.refresh();
  };
  const { task } = poll.data ?? {};
  const failures = task ? failuresOf(task) : [];
  const heading = html`<span class="page-kind">${words.task}</span> <span class="code">${id}</span>
    ${task && html` <${Badge} level=${LEVELS[task.state]}>${words.states[task.state] ?? task.state}<//>`}`;
  return html`<${Page} title=${heading} poll=${poll} actions=${task && html`<${TaskActions} ...${{ task, me, told }} />`}
      before=${task && done && html`<${Notice} level="ok">${done.text}<//>`}>${({ explanation, remembered }) => (task ? html`
    <${Sentence} level=${LEVELS[task.state] ?? "warn"} text=${capitalized(explanation.sentence)} />
    <${Panel} title=${words.life}><${Life} task=${task} now=${serverNow()} /><//>
    <div class="task-columns">
      <div class="page">
        ${failures.length > 0 && html`<${Failures} failures=${failures} attempts=${task.attempts} />`}
        <${Panel} title=${words.content}>${task.content === null
          ? html`<p class="panel-body muted">${words.unreadable}</p>` : html`<${Content} text=${task.content} />`}<//>
      </div>
      <div class="page">
        <${Facts} task=${task} explanation=${explanation} />
        <${Panel} title=${words.commands}><${Commands} task=${task} /><//>
      </div>
    </div>` : html`<${NotHere} ...${{ remembered, seen: seen.current, by: done?.hasEnded ? done.text : null }} />`)}<//>`;
}

/** Ask for the task and its explanation; for a large content again only if something else has changed. */
async function load(id, seen, options) {
  const isLarge = (seen.task?.content ?? "").length > SHOWN;
  const [before, explanation] = isLarge ? [seen.task, await explain(id, options)] : [];
  const isSame = explanation && CHANGING.every((name) => explanation[name] === before[name]);
  const found = isSame ? { task: before } : await query(id, options);
  const why = found.task && (explanation ?? await explain(id, options));
  if (why) {
    Object.assign(seen, { task: found.task, at: serverNow(), goneAt: null });
    return { task: found.task, explanation: why };
  }
  if (seen.task) seen.goneAt ??= serverNow();
  return { remembered: Boolean(found.ended) };
}

/** Return `{task}`, or `{ended}` if there is none: true if its id is remembered.
 *
 * A batch answers 200 also where there is no task, which is nothing that a browser should report as a failure.
 */
async function query(id, options) {
  const { results: [task] } = await post("/query/batch", [{ id }], options);
  if (!task.error) return { task };
  if (task.error.status !== 404) throw new ApiError(task.error);
  return { task: null, ended: task.error.ended };
}

/** Return the explanation, or null if the task has gone meanwhile. */
async function explain(id, options) {
  try {
    return await post("/explain", { id }, options);
  } catch (error) {
    if (error.status !== 404) throw error;
    return null;
  }
}

function Facts({ task, explanation }) {
  const none = html`<span class="muted">${words.none}</span>`;
  const callback = task.callback ?? explanation.callback;
  const facts = [
    [words.topic, html`<${Link} to=${topicPath(task.topic)}><bdi>${task.topic}</bdi><//>`],
    [words.callback, html`${callback ? html`<bdi class="code break">${visible(callback)}</bdi>` : none}
      ${explanation.callback_from && html` <span class="muted">${words.callbackFrom(explanation.callback_from)}</span>`}`],
    [words.attempts, html`${count(task.attempts)}<span class="muted">${words.retries(task.has_retry, task.max_retry)}</span>`],
    task.due_at && [task.state === "unack" ? words.leaseEnds : words.dueAt, html`<${Time} at=${task.due_at} />`],
    task.expires_at && [words.expires, html`<${Time} at=${task.expires_at} />`],
    explanation.origin_held_until && [words.held, html`<${Time} at=${explanation.origin_held_until} />`],
    [words.headers, task.headers ? html`<${Names} names=${task.headers} />` : none],
    task.context && [words.context, html`<${Names} names=${task.context} />`],
  ];
  return html`<${Panel} title=${words.facts}><dl class="facts">${facts.filter(Boolean).map(([name, value]) => html`
    <div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl><//>`;
}

function Failures({ failures, attempts }) {
  const columns = [
    { key: "attempt", label: words.columns.attempt, header: true, render: (row) => row.attempt },
    { key: "at", label: words.columns.at, render: (row) => html`<${Time} at=${row.at} />` },
    { key: "reason", label: words.columns.reason, render: (row) => html`<${Badge} level="warn">${visible(row.reason)}<//>` },
    { key: "status", label: words.columns.status, render: (row) => row.status ?? "–" },
    { key: "took", label: words.columns.took, align: "end",
      render: (row) => (typeof row.took_ms === "number" ? duration(row.took_ms / 1000) : "–") },
    { key: "message", label: words.columns.message, wrap: true,
      render: (row) => html`<bdi>${visible(row.message)}</bdi>` },
  ];
  const note = attempts > failures.length ? words.lastOf(failures.length, count(attempts)) : null;
  return html`<${Panel} title=${words.failures} note=${note}><${Table} caption=${words.failures} columns=${columns}
    rows=${failures.toReversed()} keyOf=${(row) => `${row.attempt} ${row.at}`} /><//>`;
}
