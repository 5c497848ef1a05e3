// A page of tasks: a filter over what is loaded, a selection with its actions, and the way to the next page.

import { post } from "../lib/api.js";
import { Badge, Empty, ErrorNotice, FilterInput, Loading, Pager, Panel, Table } from "../lib/components.js";
import { Time, count } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/html.js";
import { usePoll } from "../lib/poll.js";
import { Link, taskPath } from "../lib/router.js";
import { taskWords } from "../lib/words/tasks.js";
import { visible } from "./readable.js";
import { SelectionBar } from "./selection.js";

const words = taskWords.list;
const PAGE = 100;
const LEVELS = { error: "warn", dead: "bad", unack: "info" };

/** Draw a page of what `/list` answers to `request`. `pageTo(cursor)` is `{to, query}` of another page. */
export function TaskList({ request, me, pageTo, onChanged }) {
  const [filter, setFilter] = useState("");
  const [selected, setSelected] = useState(new Set());
  const { cursor, ...scope } = request;
  const key = JSON.stringify(scope);
  useEffect(() => { setSelected(new Set()); }, [key]);
  useEffect(() => { setFilter(""); }, [key, cursor]);
  const poll = usePoll((options) => post("/list", { ...request, limit: PAGE }, options), 0, [key, cursor]);
  if (!poll.data) return html`<${ErrorNotice} error=${poll.error} />${poll.loading && html`<${Loading} />`}`;
  const { tasks } = poll.data;
  const rows = tasks.filter((task) => matches(task, filter.trim().toLowerCase()));
  const changed = () => {
    setSelected(new Set());
    poll.refresh();
    onChanged?.();
  };
  const choose = (chosen) => {
    const elsewhere = [...selected].filter((id) => !rows.some((task) => task.id === id));
    setSelected(new Set([...elsewhere, ...chosen]));
  };
  const selection = { selected, onChange: choose, disabled: me.whyNot("edit") !== "" };
  return html`<${Panel} title=${words.shown(rows.length, tasks.length, !cursor && !poll.data.cursor)} className="task-list"
      actions=${html`<${FilterInput} label=${words.filterPage} value=${filter} onInput=${setFilter} />
        <button class="button" onClick=${poll.refresh}>${words.refresh}</button>`}>
    <${ErrorNotice} error=${poll.error} />
    <${SelectionBar} ...${{ selected, state: request.state, me, onClear: () => setSelected(new Set()), changed }} />
    ${rows.length > 0
      ? html`<${Table} caption=${words.page} columns=${columnsFor(request.state)} rows=${rows} keyOf=${(task) => task.id}
          selection=${selection} busy=${poll.loading} />`
      : html`<${Empty} title=${words.none}><p>${tasks.length ? words.noneLoaded
        : words.noneText(taskWords.states[request.state], request.topic)}</p><//>`}
    <${Pager} cursor=${cursor} next=${poll.data.cursor} pageTo=${pageTo} />
  <//>`;
}

function matches(task, text) {
  if (!text) return true;
  return [task.id, task.callback, task.last_error?.message, task.last_error?.reason]
    .some((value) => value && value.toLowerCase().includes(text));
}

function columnsFor(state) {
  const { columns } = taskWords;
  const isDead = state === "dead";
  const id = { key: "id", label: columns.id, header: true,
    render: (task) => html`<${Link} to=${taskPath(task.id)} class="code">${task.id}<//>` };
  const when = { key: "when", label: isDead ? columns.died : columns.due,
    render: (task) => html`<${Time} at=${task.died_at ?? task.due_at} />` };
  const attempts = { key: "attempts", label: columns.attempts, align: "end", hide: "small",
    render: (task) => html`<span class=${task.attempts ? "" : "zero"}>${count(task.attempts)}</span>` };
  const reason = { key: "reason", label: columns.reason, render: ({ last_error: error }) => error
    && html`<${Badge} level=${isDead ? "bad" : "warn"}>${visible(error.reason)}<//>` };
  const status = { key: "status", label: columns.status, align: "end", render: (task) => task.last_error?.status ?? "–" };
  const message = { key: "message", label: columns.message, wrap: true,
    render: (task) => html`<bdi class="clamp">${visible(task.last_error?.message ?? "")}</bdi>` };
  const callback = { key: "callback", label: columns.callback, wrap: true, hide: "small",
    render: (task) => html`<bdi class="code clamp muted">${visible(task.callback ?? taskWords.none)}</bdi>` };
  if (isDead) return [id, reason, status, when, attempts, message];
  const shown = state === "pending" ? [{ key: "state", label: columns.state, render: (task) => html`
    <${Badge} level=${LEVELS[task.state]}>${taskWords.states[task.state] ?? task.state}<//>` }] : [];
  return [id, ...shown, when, attempts, ...(state === "delay" ? [] : [reason]), callback];
}
