// The instances of later on this store: what each does, how busy it is, and whether one differs from the others.

import { get, serverNow } from "../lib/api.js";
import { Badge, Empty, Notice, Panel, Sentence, Table } from "../lib/components.js";
import { Time, count, duration } from "../lib/format.js";
import { html } from "../lib/html.js";
import { usePoll } from "../lib/poll.js";
import { fleetWords } from "../lib/words/fleet.js";
import { Page } from "../tasks/parts.js";
import { visible } from "../tasks/readable.js";

const words = fleetWords.workers;
const OFF_S = 1; // a clock that is off by more is told

export function title() {
  return words.page;
}

export default function WorkersPage({ me }) {
  if (me.namespace !== null) return html`<${Page} title=${words.page}>${() => html`<${Notice}>${words.notAllowed}<//>`}<//>`;
  return html`<${AllWorkers} />`;
}

function AllWorkers() {
  const poll = usePoll((options) => get("/workers", {}, options), 5000);
  return html`<${Page} title=${words.page} poll=${poll}>${({ workers }) => html`<${Instances} workers=${workers} />`}<//>`;
}

function Instances({ workers }) {
  if (!workers.length) return html`<${Empty} title=${words.none} text=${words.noneText} />`;
  const alive = workers.filter((worker) => worker.alive);
  const versions = [...new Set(alive.map(({ version }) => version))];
  const usual = mostFrequent(alive.map(({ version }) => version));
  const delivering = alive.filter(({ slots }) => slots > 0).length;
  const isOff = ({ clock_offset_s: offset }) => Math.abs(offset ?? 0) > OFF_S;
  const faults = [
    alive.length < workers.length && words.gone(workers.length - alive.length),
    versions.length > 1 && words.mixed(versions),
    alive.some(isOff) && words.clocks(alive.filter(isOff).length),
  ].filter(Boolean);
  const level = delivering === 0 ? "bad" : faults.length ? "warn" : "ok";
  const columns = [
    { key: "name", label: words.name, header: true, render: ({ name, host, alive: isAlive }) => html`
      <bdi class="strong clip" title=${name}>${visible(name)}</bdi>${!isAlive && html` <${Badge} level="warn">${words.notAlive}<//>`}
      ${host && !name.startsWith(host) && html`<br /><bdi class="muted">${visible(host)}</bdi>`}` },
    { key: "role", label: words.role, render: ({ role }) => role },
    { key: "slots", label: words.slots, render: ({ slots, slots_in_use: used }) => (slots
      ? html`<div class="slots"><meter max=${slots} value=${used} aria-hidden="true"></meter>
          ${words.ofSlots(count(used), count(slots))}</div>`
      : html`<span class="muted">${words.noSlots}</span>`) },
    { key: "heartbeat", label: words.heartbeat, render: (row) => html`<${Time} at=${row.last_heartbeat_at} />` },
    { key: "version", label: words.version, render: ({ version }) => html`<bdi>${visible(version)}</bdi>
      ${version !== usual && html` <${Badge} level="warn">${words.differs}<//>`}` },
    { key: "clock", label: words.clock, align: "end", render: (row) => html`<${Clock} offset=${row.clock_offset_s} />` },
    { key: "processes", label: words.processes, align: "end", hide: "small", render: ({ processes }) => count(processes) },
    { key: "since", label: words.since, align: "end", hide: "small",
      render: ({ since }) => duration(Math.max(0, serverNow() - Date.parse(since)) / 1000) },
  ];
  return html`
    <${Sentence} level=${level} text=${delivering ? words.deliver(delivering, workers.length) : words.nobody}>
      <span>${faults.length ? faults.join(" ") : words.fine}</span><//>
    <${Panel} title=${words.instances}><${Table} caption=${words.instances} columns=${columns} rows=${workers.toSorted(byName)}
      keyOf=${({ name }) => name} /><//>`;
}

/** Those that are alive come first; the order stays while heartbeats come. */
const byName = (a, b) => b.alive - a.alive || (a.name < b.name ? -1 : 1);

function mostFrequent(values) {
  const count = (value) => values.filter((other) => other === value).length;
  return values.reduce((best, value) => (best === undefined || count(value) > count(best) ? value : best), undefined);
}

function Clock({ offset }) {
  if (typeof offset !== "number") return html`<span class="muted">–</span>`;
  const text = `${offset > 0 ? "+" : ""}${duration(offset)}`;
  return Math.abs(offset) > OFF_S ? html`<${Badge} level="warn">${text}<//>` : html`<span class="muted">${text}</span>`;
}
