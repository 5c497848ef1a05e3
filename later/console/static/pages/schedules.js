// Schedules: when each fires next, and what became of its last firing.

import { del, get, post } from "../lib/api.js";
import { Badge, ButtonWithReason, Empty, Notice, Pager, Table } from "../lib/components.js";
import { ConfirmDialog } from "../lib/dialog.js";
import { Time, duration } from "../lib/format.js";
import { html, useRef, useState } from "../lib/html.js";
import { announce } from "../lib/live_region.js";
import { usePoll } from "../lib/poll.js";
import { Link, segment, taskPath, topicPath } from "../lib/router.js";
import { fleetWords } from "../lib/words/fleet.js";
import { Page } from "../tasks/parts.js";
import { visible } from "../tasks/readable.js";

const words = fleetWords.schedules;
const pathOf = (id) => `/schedules/${segment(id)}`;

export function title() {
  return words.page;
}

export default function SchedulesPage({ query, me }) {
  const cursor = query.get("cursor");
  const [asked, setAsked] = useState(null);
  const [told, setTold] = useState(null);
  const [error, setError] = useState(null);
  const isBusy = useRef(false);
  const poll = usePoll((options) => get("/schedules", { limit: 100, cursor }, options), 10_000, [cursor]);
  const done = (text, task) => {
    announce(text);
    setTold({ text, task });
    poll.refresh();
  };
  const act = (id, action) => async () => {
    if (isBusy.current) return; // a second click would fire it twice
    isBusy.current = true;
    setError(null);
    setTold(null);
    try {
      const answer = await post(`${pathOf(id)}/${action}`);
      if (action === "run-now") done(words.ran, answer.id);
      else done(words.did[action](id));
    } catch (failure) {
      setError(failure);
    }
    isBusy.current = false;
  };
  const remove = async () => {
    await del(pathOf(asked));
    done(words.did.delete(asked));
  };
  const reason = me.whyNot("edit") || me.whyNot("create");
  const notice = told && html`<${Notice} level="ok"><bdi>${told.text}</bdi>
    ${told.task && html` <${Link} to=${taskPath(told.task)} class="code">${told.task}<//>`}<//>`;
  return html`<${Page} title=${words.page} before=${notice} poll=${poll} error=${error}>${({ schedules, cursor: next }) => html`
    ${schedules.length === 0 ? html`<${Empty} title=${words.none} text=${words.noneText} />`
      : html`<section class="panel" aria-label=${words.page}>
        <${Table} caption=${words.page} rows=${schedules} keyOf=${({ id }) => id} columns=${columnsOf(act, setAsked, reason)} />
        <${Pager} ...${{ cursor, next }} pageTo=${(to) => ({ to: "/schedules", query: { cursor: to } })} /></section>`}
    ${asked && html`<${ConfirmDialog} title=${words.deleteTitle} count=${1} sample=${[asked]} confirmLabel=${words.delete}
      danger onConfirm=${remove} onClose=${() => setAsked(null)}><p>${words.deleteNote}</p><//>`}`}<//>`;
}

function columnsOf(act, setAsked, reason) {
  const button = (label, onClick, className = "") => html`<${ButtonWithReason} className=${`button-small ${className}`}
    reason=${reason} onClick=${onClick}>${label}<//>`;
  return [
    { key: "id", label: words.id, header: true, render: ({ id }) => html`<span class="code strong">${id}</span>` },
    { key: "state", label: words.state, render: (row) => html`${row.paused
      ? html`<${Badge} level="warn">${words.paused}<//>` : html`<${Badge} level="ok">${words.active}<//>`}
      ${row.last_error && html` <${Badge} level="bad" title=${visible(row.last_error.message)}>${words.failed}<//>`}` },
    { key: "fires", label: words.fires, render: ({ cron, every, zone }) => (cron
      ? html`<code>${cron}</code> <span class="muted">${zone}</span>` : words.every(duration(every))) },
    { key: "next", label: words.next, render: ({ next }) => (next.length ? html`<${Time} at=${next[0]} />` : words.never) },
    { key: "last", label: words.last, render: ({ last }) => (last
      ? html`<${Link} to=${taskPath(last.task_id)}><${Time} at=${last.time} /><//>` : words.never) },
    { key: "topic", label: words.topic, render: ({ topic }) => html`
      <${Link} to=${topicPath(topic)} class="clip"><bdi>${topic}</bdi><//>` },
    { key: "actions", label: "", align: "end", render: ({ id, paused }) => html`<div class="row-actions">
      ${button(words.runNow, act(id, "run-now"))}
      ${paused ? button(words.resume, act(id, "resume")) : button(words.pause, act(id, "pause"))}
      ${button(words.delete, () => setAsked(id), "button-remove")}</div>` },
  ];
}
