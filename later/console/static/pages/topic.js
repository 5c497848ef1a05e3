// A topic: why its tasks wait, its figures, its past and future, its policy, and what can be done with it.

import { html, useState } from "../lib/html.js";
import { get, post, serverNow } from "../lib/api.js";
import { Lines, StackedBars } from "../lib/charts.js";
import { ButtonWithReason, ErrorNotice, Lazy, Loading, Panel, Sentence, Tile, Tiles } from "../lib/components.js";
import { ConfirmDialog } from "../lib/dialog.js";
import { capitalized, compact, count, duration, parseTime, relative } from "../lib/format.js";
import { announce } from "../lib/live_region.js";
import { usePoll } from "../lib/poll.js";
import { Link, topicSegment } from "../lib/router.js";
import { namespaceOf, Past, TopicBadges } from "../lib/topic_parts.js";
import { topicWords as words } from "../lib/words/topic.js";
import { topicWords as listWords } from "../lib/words/topics.js";
import { ForecastPanel } from "./topic_forecast.js";
import { PolicyPanel } from "./topic_policy.js";

export const title = ({ params }) => params.topic;

const HOURS = { "6h": 6, "24h": 24 };
const LATE_S = 60;

export default function Topic({ params: { topic }, query, me }) {
  const path = `/topics/${topicSegment(topic)}`;
  const { data, error, refresh } = usePoll(({ signal }) => post("/explain", { topic }, { signal }), 3000, [topic]);
  const policy = usePoll(({ signal }) => get(`${path}/policy`, { applied: true }, { signal }), 0, [topic]);
  const values = policy.data ?? {};
  const head = html`<div class="page-head"><div class="page-head-title">
      <h1><span class="crumb"><${Link} to="/topics" query=${{ namespace: namespaceOf(topic) }}><bdi>${namespaceOf(topic)}</bdi><//>${" / "}</span><bdi>${topic.includes("/") ? topic.slice(topic.indexOf("/") + 1) : topic}</bdi></h1>
      ${data && html`<${TopicBadges} topic=${badgesOf(data, values)} />`}</div>
    ${data && html`<${Actions} ...${{ topic, path, explained: data, me, onDone: () => { refresh(); policy.refresh(); } }} />`}</div>`;
  if (!data) return html`<div class="page">${head}${error ? html`<${ErrorNotice} error=${error} />` : html`<${Loading} />`}</div>`;
  return html`<div class="page">${head}
    <${Sentence} level=${levelOf(data)} text=${capitalized(data.sentence)} />
    <${Figures} ...${{ topic, explained: data }} />
    <${ForecastPanel} topic=${topic} />
    <${History} ...${{ topic, range: query.get("range") in HOURS ? query.get("range") : "6h" }} />
    <${PolicyPanel} ...${{ topic, policy, me, onChanged: refresh }} />
  </div>`;
}

function levelOf({ paused, due, oldest_lateness_s: oldest, workers }) {
  if (paused) return "warn";
  if (!due) return "ok";
  return workers === 0 || oldest > LATE_S ? "bad" : "ok";
}

function badgesOf({ paused, policy }, applied) {
  return {
    paused, held: applied.deliver?.value === "pull" ? "pull" : "no", rate: policy.rate, concurrency: policy.concurrency,
  };
}

function Figures({ topic, explained: { counts, due, oldest_lateness_s: oldest, next_due_at: next } }) {
  const tasks = (state) => ({ to: "/tasks", query: { topic, state } });
  const nextAt = parseTime(next);
  const sub = nextAt && nextAt > serverNow() ? words.next(relative(nextAt)) : counts.delay ? "" : words.noneWaits;
  return html`<${Tiles} label=${words.figures}>
    <${Tile} label=${words.due} value=${compact(due)} title=${count(due)} />
    <${Tile} label=${words.oldest} value=${duration(oldest)} />
    <${Tile} label=${words.delay} value=${compact(counts.delay)} title=${count(counts.delay)} sub=${sub} ...${tasks("delay")} />
    <${Tile} label=${words.unack} value=${compact(counts.unack)} title=${count(counts.unack)} ...${tasks("unack")} />
    <${Tile} label=${words.error} value=${compact(counts.error)} title=${count(counts.error)} ...${tasks("error")} />
    <${Tile} label=${words.dead} value=${compact(counts.dead)} title=${count(counts.dead)} to="/dead" query=${{ topic }} />
  <//>`;
}

function History({ topic, range }) {
  const load = ({ signal }) => get("/history", {
    topic, series: "done,busy,failed,due", step: 300, since: new Date(serverNow() - HOURS[range] * 3_600_000).toISOString(),
  }, { signal });
  const history = usePoll(load, 30_000, [topic, range]);
  const { data } = history;
  const common = { from: parseTime(data?.from), step_s: data?.step_s };
  const bars = data && Object.entries(words.outcomes).map(([name, label]) => ({
    label, values: data.series[name], className: `c-${name}`, pattern: { busy: "dots", failed: "hatch" }[name],
  }));
  const lines = data && [{ label: words.dueSeries, values: data.series.due, className: "c-held", dash: "" }];
  return html`<${Past} ranges=${words.ranges} ...${{ range, history }}>
      <${Panel} title=${words.deliveries} note=${words.deliveriesNote}>
        <${StackedBars} title=${words.deliveries} series=${bars} ...${common} /><//>
      <${Panel} title=${words.dueTasks} note=${words.dueTasksNote}>
        <${Lines} title=${words.dueTasks} series=${lines} format=${compact} ...${common} /><//>
    <//>`;
}

function Actions({ topic, path, explained, me, onDone }) {
  const [asks, setAsks] = useState("");
  const action = explained.paused ? "resume" : "pause";
  const act = async () => {
    await post(`${path}/${action}`);
    announce(words[action === "pause" ? "paused" : "resumed"]);
    onDone();
  };
  const close = () => setAsks("");
  return html`<div class="page-actions">
    <${Link} class="button" to="/tasks" query=${{ topic }}>${words.tasks}<//>
    <${ButtonWithReason} reason=${me.whyNot("admin")} onClick=${() => setAsks(action)}>${words[action]}<//>
    <${ButtonWithReason} reason=${me.whyNot("edit")} onClick=${() => setAsks("purge")}>${words.purge}<//>
    ${(asks === "pause" || asks === "resume") && html`<${ConfirmDialog} title=${listWords[`${asks}Title`](1)} confirmLabel=${words[asks]}
      onConfirm=${act} onClose=${close}><p>${listWords[`${asks}Text`]}</p><//>`}
    ${asks === "purge" && html`<${Lazy} load=${() => import("../tasks/purge.js")} name="PurgeDialog"
      ...${{ topic, onDone, onClose: close }} />`}
  </div>`;
}
