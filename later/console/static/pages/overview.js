// The overview: what is wrong, the figures, what happened, and what falls due.

import { html, useMemo, useState } from "../lib/html.js";
import { get, serverNow } from "../lib/api.js";
import { Lines, StackedBars } from "../lib/charts.js";
import { Empty, ErrorNotice, Loading, Notice, Panel, Sentence, Snippet, Tile, Tiles, withCode } from "../lib/components.js";
import { compact, count, decimal, duration, parseTime, Time } from "../lib/format.js";
import { announce } from "../lib/live_region.js";
import { usePoll } from "../lib/poll.js";
import { BASE, Link, topicPath } from "../lib/router.js";
import { learnTopics } from "../lib/search.js";
import { acknowledge, acknowledged } from "../lib/settings.js";
import { Table } from "../lib/table.js";
import { Past, topicColumns } from "../lib/topic_parts.js";
import { overviewWords as words } from "../lib/words/overview.js";
import { curl } from "../tasks/readable.js";

export const title = () => words.title;

const RANGES = { "1h": { hours: 1, step: 10 }, "6h": { hours: 6, step: 300 }, "7d": { hours: 168, step: 300 } };
const OUTCOMES = ["done", "busy", "failed", "gone"];
const PATTERNS = { busy: "dots", failed: "hatch", gone: "lines" };
const SERIES = [...OUTCOMES, "lateness_p50", "lateness_p99", "held_lateness_p99"].join();

export default function Overview({ query, me }) {
  const range = query.get("range") in RANGES ? query.get("range") : "1h";
  const { data, error } = usePoll(loadOverview, 2000);
  const forecast = usePoll(({ signal }) => get("/forecast", { hours: 6, step: 300 }, { signal }), 30_000);
  const history = usePoll(({ signal }) => loadHistory(range, me.namespace, signal), 10_000, [range]);
  if (!data) return error ? html`<div class="page"><h1>${words.title}</h1><${ErrorNotice} error=${error} /></div>` : html`<${Loading} />`;
  if (isEmpty(data, history.data)) return html`<div class="page"><h1 class="visually-hidden">${words.title}</h1><${FirstSteps} /></div>`;
  return html`<div class="page">
    <h1 class="visually-hidden">${words.title}</h1>
    <${Headline} overview=${data} />
    <${Figures} overview=${data} />
    <${History} ...${{ range, history, isBound: me.namespace !== null }} />
    <${Forecast} ...${forecast} />
    <${WorstTopics} overview=${data} forecast=${forecast.data} />
  </div>`;
}

async function loadOverview({ signal }) {
  const overview = await get("/overview", { topics: 20 }, { signal });
  learnTopics(overview.topics.map(({ topic }) => topic));
  return overview;
}

/** Figures of the past. Keys that are bound to a namespace see only those of its topics. */
async function loadHistory(range, namespace, signal) {
  if (namespace !== null) return null;
  const { hours, step } = RANGES[range];
  const since = new Date(serverNow() - hours * 3_600_000).toISOString();
  return get("/history", { series: SERIES, since, step }, { signal });
}

/** Whether this store has never had a task, as far as can be seen. */
function isEmpty({ topics_total, tasks }, history) {
  const past = Object.values(history?.series ?? {}).some((values) => values.some(Boolean));
  return topics_total === 0 && !past && tasks.delay + tasks.unack + tasks.error + tasks.dead === 0;
}

function Headline({ overview: { level, sentence, topic, counted_at } }) {
  return html`<${Sentence} level=${level} text=${sentence} to=${topic && topicPath(topic)} toLabel=${topic}>
    ${counted_at && html`<span>${words.counted} <${Time} at=${counted_at} /></span>`}<//>`;
}

function Figures({ overview }) {
  const { tasks, due, rates, lateness, workers, oldest_lateness_s: oldest, oldest_held_lateness_s: held } = overview;
  const begun = rates && OUTCOMES.reduce((sum, name) => sum + rates[name], 0);
  return html`<${Tiles} label=${words.tiles}>
    <${Tile} label=${words.due} value=${compact(due)} title=${count(due)} to="/topics" query=${{ sort: "due" }}
      sub=${words.waiting(compact(tasks.delay))} />
    <${Tile} label=${words.oldest} value=${duration(oldest)} to="/topics" query=${{ sort: "lateness" }}
      sub=${held === null ? words.nothingHeld : words.held(duration(held))} />
    <${Tile} label=${words.rate} value=${decimal(begun)} unit=${rates && words.perSecond}
      sub=${rates && (rates.failed > 0 ? words.failing(decimal(rates.failed)) : words.created(decimal(rates.created)))} />
    <${Tile} label=${words.lateness} value=${duration(lateness?.p99_s)} title=${rates && words.latenessNote(duration(rates.step_s))}
      sub=${words.median(duration(lateness?.p50_s))} />
    <${DeadTile} number=${tasks.dead} />
    ${workers ? html`<${WorkersTile} workers=${workers} />` : html`<${Tile} label=${words.topics} to="/topics"
      value=${compact(overview.topics_total)} sub=${words.paused(count(overview.topics_paused))} />`}
  <//>`;
}

/** The dead tasks: red until somebody has acknowledged the number, and again when it grows. */
function DeadTile({ number }) {
  const [, redraw] = useState(0);
  const known = acknowledged("dead", number);
  const fresh = number - known;
  const accept = () => {
    acknowledge("dead", number);
    announce(words.acknowledgedNow(count(number)));
    redraw((n) => n + 1);
  };
  const sub = !number ? words.none : !fresh ? words.acknowledged : known ? words.more(count(fresh)) : "";
  return html`<${Tile} label=${words.dead} value=${compact(number)} title=${count(number)} to="/dead"
    level=${fresh ? "bad" : undefined} sub=${sub}>
    ${fresh > 0 && html`<button class="tile-action" onClick=${accept}>${words.acknowledge}</button>`}<//>`;
}

function WorkersTile({ workers }) {
  const sub = workers.count ? words.slots(count(workers.slots_in_use), count(workers.slots)) : words.noWorker;
  return html`<${Tile} label=${words.workers} value=${count(workers.count)} to="/workers"
    level=${workers.count ? undefined : "bad"} sub=${sub} />`;
}

function History({ range, history, isBound }) {
  const { data } = history;
  if (isBound) return html`<${Notice}>${words.historyBound}<//>`;
  const from = data && parseTime(data.from);
  const bars = OUTCOMES.map((name) => ({
    label: words.outcomes[name], values: data?.series[name] ?? [], className: `c-${name}`, pattern: PATTERNS[name],
  }));
  const lines = [
    { label: words.p50, values: data?.series.lateness_p50 ?? [], className: "c-p50", dash: "" },
    { label: words.p99, values: data?.series.lateness_p99 ?? [], className: "c-p99", dash: "long" },
    { label: words.heldP99, values: data?.series.held_lateness_p99 ?? [], className: "c-held", dash: "dots" },
  ];
  return html`<${Past} ranges=${words.ranges} ...${{ range, history }}>
      <${Panel} title=${words.deliveries} note=${words.deliveriesNote}>
        <${StackedBars} title=${words.deliveries} from=${from} step_s=${data?.step_s} series=${bars} /><//>
      <${Panel} title=${words.latenessChart} note=${words.latenessChartNote}>
        <${Lines} title=${words.latenessChart} from=${from} step_s=${data?.step_s} series=${lines} log format=${duration} /><//>
    <//>`;
}

function Forecast({ data, error }) {
  const series = [{ label: words.forecastSeries, values: data?.counts ?? [], className: "c-waiting" }];
  return html`<${Panel} title=${words.forecast} note=${data ? words.forecastSum(compact(data.counts.reduce((sum, n) => sum + n, 0)), compact(data.due)) : ""}>
    ${error && !data && html`<div class="panel-body"><${ErrorNotice} error=${error} /></div>`}
    <${StackedBars} title=${words.forecast} from=${parseTime(data?.from)} step_s=${data?.step_s} series=${series}
      how="sum" format=${compact} idle=${false} /><//>`;
}

function WorstTopics({ overview, forecast }) {
  const columns = useMemo(() => {
    const byTopic = new Map((forecast?.topics ?? []).map((one) => [one.topic, one.counts]));
    const from = parseTime(forecast?.from);
    return topicColumns((topic) => byTopic.has(topic) && { from, step_s: forecast.step_s, counts: byTopic.get(topic) });
  }, [forecast]);
  return html`<${Panel} title=${words.worst} note=${words.worstNote}
    actions=${html`<${Link} class="button button-small" to="/topics">${words.all}<//>`}>
    <${Table} caption=${words.worst} columns=${columns.map(({ sort, ...column }) => column)} rows=${overview.topics}
      keyOf=${({ topic }) => topic} /><//>`;
}

/** What to do with a new store. */
function FirstSteps() {
  const task = { topic: "hello", callback: "http://127.0.0.1:8888/", delay: 60, content: "hello" };
  const create = curl("POST", `${BASE}/create`, task);
  const command = "later create --topic hello --callback http://127.0.0.1:8888/ --delay 1m --content hello";
  return html`<${Empty} title=${words.first.title} text=${words.first.text}>
    <div class="first-steps"><h2>${words.first.curl}</h2><${Snippet} text=${create} label=${words.first.curl} />
      <h2>${words.first.cli}</h2><${Snippet} text=${command} label=${words.first.cli} />
      <p>${withCode(words.first.guard)} ${withCode(words.first.keys)}</p></div><//>`;
}
