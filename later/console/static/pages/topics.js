// The list of topics: sorted, filtered, paused and resumed.

import { html, useMemo, useRef, useState } from "../lib/html.js";
import { get, post } from "../lib/api.js";
import { ButtonWithReason, Empty, ErrorNotice, Field, Loading, Notice, Pager } from "../lib/components.js";
import { ConfirmDialog } from "../lib/dialog.js";
import { count, Time } from "../lib/format.js";
import { announce } from "../lib/live_region.js";
import { usePoll } from "../lib/poll.js";
import { changeQuery, topicSegment } from "../lib/router.js";
import { learnTopics } from "../lib/search.js";
import { Table } from "../lib/table.js";
import { namespaceOf, topicColumns } from "../lib/topic_parts.js";
import { topicWords as words } from "../lib/words/topics.js";

export const title = ({ query }) => (query.get("namespace") ? `${words.title} · ${query.get("namespace")}` : words.title);

const PAGE = 200;
const AT_ONCE = 4;
const SORTS = ["lateness", "due", "dead", "delay", "name"];
const columns = topicColumns();

export default function Topics({ query, me }) {
  const sort = SORTS.includes(query.get("sort")) ? query.get("sort") : "lateness";
  const namespace = query.get("namespace");
  const cursor = sort === "name" ? query.get("cursor") : null;
  const load = ({ signal }) => loadTopics({ sort, namespace, cursor }, signal);
  const { data, error, loading, refresh } = usePoll(load, 5000, [sort, namespace, cursor]);
  const [selected, setSelected] = useState(new Set());
  const filter = query.get("filter") ?? "";
  const rows = useMemo(() => filterRows(data?.topics ?? [], filter), [data, filter]);
  const chosen = rows.filter(({ topic }) => selected.has(topic));
  const selection = { selected, onChange: setSelected };
  return html`<div class="page">
    <div class="page-head"><h1>${words.title}</h1>
      ${data && html`<span class="muted">${words.shown(rows.length, data.topics.length, data.topics.length >= PAGE)}${data.counted_at && html`${" · "}${words.counted}${" "}<${Time} at=${data.counted_at} />`}</span>`}</div>
    <${Filters} ...${{ namespace, filter, topics: data?.topics ?? [], isBound: me.namespace !== null }} />
    ${error && html`<${ErrorNotice} error=${error} />`}
    ${!data && loading && html`<${Loading} />`}
    ${data && (rows.length ? html`<section class="panel">
      <${Actions} ...${{ chosen, me, onDone: (left) => { setSelected(new Set(left)); refresh(); }, onClear: () => setSelected(new Set()) }} />
      <${Table} caption=${words.title} columns=${columns} rows=${rows} keyOf=${({ topic }) => topic} selection=${selection}
        sorted=${sort} onSort=${(name) => changeQuery({ sort: name === "lateness" ? null : name, cursor: null })} /></section>`
    : html`<${Empty} title=${words.none} text=${filter ? words.noneFiltered : words.noneText} />`)}
    <${Pages} ...${{ data, cursor, query, sort }} />
  </div>`;
}

async function loadTopics({ sort, namespace, cursor }, signal) {
  const order = sort === "name" ? { cursor } : { sort };
  const answer = await get("/topics", { namespace, ...order, limit: PAGE }, { signal });
  learnTopics(answer.topics.map(({ topic }) => topic));
  return answer;
}

function filterRows(topics, filter) {
  const wanted = filter.toLowerCase();
  return wanted ? topics.filter(({ topic }) => topic.toLowerCase().includes(wanted)) : topics;
}

function Filters({ namespace, filter, topics, isBound }) {
  const seen = useRef(new Set());
  for (const name of [...topics.map(({ topic }) => namespaceOf(topic)), namespace]) if (name) seen.current.add(name);
  const names = [...seen.current].sort();
  return html`<div class="filters" role="search" aria-label=${words.filter}>
    <${Field} label=${words.filter}>${(props) => html`<input class="input" type="search" value=${filter} maxlength="255"
      autocomplete="off" dir="auto" ...${props}
      onInput=${(event) => changeQuery({ filter: event.target.value }, { replace: true })} />`}<//>
    ${!isBound && html`<${Field} label=${words.namespace}>${(props) => html`<select class="select" value=${namespace ?? ""} ...${props}
      onChange=${(event) => changeQuery({ namespace: event.target.value, cursor: null })}>
      <option value="">${words.allNamespaces}</option>${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select>`}<//>`}
  </div>`;
}

/** What can be done with the chosen topics, and what was done. Those that failed stay chosen. */
function Actions({ chosen, me, onDone, onClear }) {
  const [asks, setAsks] = useState(null);
  const [told, setTold] = useState(null);
  const names = chosen.map(({ topic }) => topic);
  const act = async () => {
    const failed = await actOnTopics(names, asks);
    const text = `${words.done[asks](names.length - failed.length)}${failed.length ? words.failed(failed.length) : ""}.`;
    setTold({ text, failed });
    announce(text);
    onDone(failed.map(({ topic }) => topic));
  };
  return html`${told && html`<${Notice} level=${told.failed.length ? "bad" : "ok"} role=${told.failed.length ? "alert" : undefined}>
      ${told.text}<ul>${told.failed.slice(0, 5).map(({ topic, error }) => html`<li key=${topic}><bdi>${topic}</bdi>: ${error.message}</li>`)}</ul><//>`}
    ${names.length > 0 && html`<div class="selection"><strong>${words.chosen(count(names.length))}</strong>
      ${["pause", "resume"].map((action) => html`<${ButtonWithReason} key=${action} className="button-small"
        reason=${me.whyNot("admin")} onClick=${() => setAsks(action)}>${words[action]}<//>`)}
      <button class="button button-small button-quiet" onClick=${onClear}>${words.clear}</button></div>`}
    ${asks && html`<${ConfirmDialog} title=${words[`${asks}Title`](names.length)} count=${names.length} sample=${names.slice(0, 5)}
      confirmLabel=${words[asks]} reason=${names.length ? "" : words.noneLeft} onConfirm=${act} onClose=${() => setAsks(null)}>
      <p>${words[`${asks}Text`]}</p><//>`}`;
}

/** Pause or resume topics, a few at a time; return those that failed. */
async function actOnTopics(topics, action) {
  const failed = [];
  const rest = [...topics];
  const work = async () => {
    for (let topic = rest.shift(); topic !== undefined; topic = rest.shift()) {
      try {
        await post(`/topics/${topicSegment(topic)}/${action}`);
      } catch (error) {
        failed.push({ topic, error });
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return failed;
}

function Pages({ data, cursor, query, sort }) {
  if (!data) return null;
  if (sort !== "name") return data.topics.length < PAGE ? null : html`<p class="muted">${words.most(PAGE)}</p>`;
  const pageTo = (to) => ({ to: "/topics", query: { ...Object.fromEntries(query), cursor: to } });
  return html`<${Pager} ...${{ cursor, next: data.cursor, pageTo }} />`;
}
