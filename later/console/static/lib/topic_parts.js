// What several pages show of a topic: what holds it, its counts, and what falls due next.

import { html } from "./html.js";
import { Sparkbars } from "./charts.js";
import { Badge, ErrorNotice, Notice, Segments } from "./components.js";
import { clock, compact, count, decimal, duration } from "./format.js";
import { changeQuery, Link, topicPath } from "./router.js";
import { topicWords } from "./words/topics.js";

const COLUMNS = topicWords.columns;

/** What holds a topic's due tasks, and its limits. */
export function TopicBadges({ topic }) {
  const { held, paused, rate, concurrency } = topic;
  const isHeld = held && held !== "no";
  const level = held === "receiver" ? "bad" : held === "pull" ? "info" : "warn";
  const name = paused ? "pause" : held;
  const text = topicWords.held[name];
  const limit = name === "rate" ? rate : concurrency;
  return html`<span class="badges">
    ${(isHeld || paused) && text && html`<${Badge} level=${level} title=${topicWords.heldTitle[name]}>
      ${typeof text === "function" ? text(limit && decimal(limit)) : text}<//>`}
    ${rate > 0 && name !== "rate" && html`<${Badge}>${topicWords.limits.rate(decimal(rate))}<//>`}
    ${concurrency > 0 && name !== "concurrency" && html`<${Badge}>${topicWords.limits.concurrency(count(concurrency))}<//>`}
  </span>`;
}

function TopicName({ topic }) {
  return html`<${Link} to=${topicPath(topic)} title=${topic}><bdi>${topic}</bdi><//>`;
}

const number = (key) => (topic) => html`<span class=${topic[key] ? "" : "zero"} title=${count(topic[key])}>${compact(topic[key])}</span>`;

/** What happened in a range of time that can be chosen: the first of `ranges`, `[[value, label]]`, needs no name in the URL. */
export function Past({ ranges, range, history: { data, error }, children }) {
  const choose = (name) => changeQuery({ range: name === ranges[0][0] ? null : name }, { replace: true });
  if (data?.off) return html`<${Notice}>${topicWords.historyOff}<//>`;
  return html`<section class="stack" aria-label=${topicWords.history}>
    <div class="section-head"><h2>${topicWords.history}</h2>
      <${Segments} label=${topicWords.range} options=${ranges} value=${range} onChange=${choose} /></div>
    ${error && !data && html`<${ErrorNotice} error=${error} />`}
    <div class="two">${children}</div></section>`;
}

/** Columns of topics. `next(topic)` returns the forecast of one, or undefined if there is none. */
export function topicColumns(next) {
  const columns = [
    { key: "topic", label: COLUMNS.topic, sort: "name", header: true, render: (row) => html`<${TopicName} topic=${row.topic} />` },
    { key: "due", label: COLUMNS.due, sort: "due", align: "end", render: number("due") },
    {
      key: "lateness", label: COLUMNS.lateness, sort: "lateness", align: "end",
      render: (row) => html`<span class=${row.oldest_lateness_s ? "" : "zero"}>${duration(row.oldest_lateness_s)}</span>`,
    },
    { key: "held", label: COLUMNS.held, render: (row) => html`<${TopicBadges} topic=${row} />` },
    { key: "delay", label: COLUMNS.delay, sort: "delay", align: "end", render: number("delay") },
    { key: "unack", label: COLUMNS.unack, hide: "small", align: "end", render: number("unack") },
    { key: "error", label: COLUMNS.error, hide: "small", align: "end", render: number("error") },
    { key: "dead", label: COLUMNS.dead, sort: "dead", align: "end", render: number("dead") },
  ];
  if (next) columns.push({ key: "next", label: COLUMNS.next, render: (row) => html`<${NextHours} forecast=${next(row.topic)} />` });
  return columns;
}

/** A topic's forecast as small bars: `{from (ms), step_s, counts}`. */
function NextHours({ forecast }) {
  if (!forecast) return html`<span class="zero">–</span>`;
  const { from, step_s, counts } = forecast;
  const sum = counts.reduce((total, n) => total + n, 0);
  const most = Math.max(...counts);
  const at = clock(from + counts.indexOf(most) * step_s * 1000);
  return html`<${Sparkbars} values=${counts} label=${topicWords.next(count(sum), count(most), at)} />`;
}

/** Return the namespace of a topic: what is before the first slash, or else `default`. */
export function namespaceOf(topic) {
  const slash = topic.indexOf("/");
  return slash < 0 ? "default" : topic.slice(0, slash);
}
