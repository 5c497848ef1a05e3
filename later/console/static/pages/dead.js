// Dead tasks: by topic and reason first, then one by one; redriven and purged by filter.

import { get, serverNow } from "../lib/api.js";
import { Badge, ButtonWithReason, Empty, Notice, Panel, Table, withCode } from "../lib/components.js";
import { count } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/html.js";
import { usePoll } from "../lib/poll.js";
import { Link, navigate, topicPath, withQuery } from "../lib/router.js";
import { acknowledge, acknowledged } from "../lib/settings.js";
import { deadWords as words } from "../lib/words/dead.js";
import { TaskList } from "../tasks/list.js";
import { MoveDialog } from "../tasks/move.js";
import { Page, TimeFilter } from "../tasks/parts.js";
import { countMoves } from "../tasks/slices.js";

const REASONS = ["exhausted", "gone", "expired", "rejected", "lost", "busy", "address", "no callback", "body"];
const COUNTED_AT_ONCE = 1000; // so many are counted by reason without being asked to: it reads each of them
const DAY_MS = 86_400_000;

const seriesOf = (reason) => `dead_${reason.replace(" ", "_")}`;

export function title({ query }) {
  return query.get("topic") ? words.titleOf(query.get("topic")) : words.page;
}

export default function DeadPage({ query, me }) {
  const topic = query.get("topic");
  return topic === null ? html`<${AllTopics} me=${me} />` : html`<${OneTopic} key=${topic} ...${{ topic, query, me }} />`;
}

function AllTopics({ me }) {
  const [, redraw] = useState(0);
  const poll = usePoll((options) => get("/topics", { sort: "dead", limit: 200 }, options), 10_000);
  const rows = (poll.data?.topics ?? []).filter(({ dead }) => dead > 0);
  const unseen = rows.filter(({ topic, dead }) => acknowledged(`dead ${topic}`, dead) < dead);
  const take = (topics) => () => {
    for (const { topic, dead } of topics) acknowledge(`dead ${topic}`, dead);
    redraw((n) => n + 1);
  };
  return html`<${Page} title=${words.page} poll=${poll}>${() => html`
    ${rows.length === 0 ? html`<${Empty} title=${words.none} text=${words.noneText} />` : html`
      ${me.namespace === null && html`<${RecentReasons} />`}
      <${Panel} title=${words.byTopic} actions=${unseen.length > 0 && html`<button class="button"
        title=${words.acknowledgeHint} onClick=${take(unseen)}>${words.acknowledgeAll}</button>`}>
        <${Table} caption=${words.byTopic} columns=${topicColumns(take)} rows=${rows} keyOf=${({ topic }) => topic} /><//>`}
    <p class="muted page-foot">${withCode(words.foot)}</p>`}<//>`;
}

function topicColumns(take) {
  const news = ({ topic, dead }) => dead - acknowledged(`dead ${topic}`, dead);
  return [
    { key: "topic", label: words.topic, header: true, render: ({ topic }) => html`
      <${Link} to="/dead" query=${{ topic }}><bdi>${topic}</bdi><//>` },
    { key: "dead", label: words.dead, align: "end", render: (row) => html`
      <span class=${news(row) ? "fresh" : "zero"}>${count(row.dead)}</span>` },
    { key: "new", label: "", align: "end", render: (row) => (news(row)
      ? html`${news(row) < row.dead && html`<${Badge} level="bad">${words.news(news(row))}<//>`} <button class="button button-small button-quiet" aria-label=${words.acknowledgeTopic(row.topic)}
          onClick=${take([row])}>${words.acknowledge}</button>`
      : html`<span class="muted">${words.acknowledged}</span>`) },
  ];
}

/** Deaths of the last day, by reason. The history tells nothing to a key of one namespace. */
function RecentReasons() {
  const poll = usePoll((options) => get("/history", {
    series: REASONS.map(seriesOf).join(","), since: new Date(serverNow() - DAY_MS).toISOString(), step: 300,
  }, options), 60_000);
  if (!poll.data || poll.data.off) return null;
  const sums = REASONS.map((name) => [name, (poll.data.series[seriesOf(name)] ?? []).reduce((sum, n) => sum + (n ?? 0), 0)])
    .filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1]);
  if (!sums.length) return null;
  const most = sums[0][1];
  return html`<${Panel} title=${words.recent}><dl class="bars">${sums.map(([name, sum]) => html`<div key=${name}>
    <dt>${name}</dt><dd><meter min="0" max=${most} value=${sum} aria-hidden="true"></meter> ${count(sum)}
      <span class="muted">${words.meanings[name]}</span></dd></div>`)}</dl><//>`;
}

function OneTopic({ topic, query, me }) {
  const [asked, setAsked] = useState(null);
  const [changes, setChanges] = useState(0); // of the reasons' numbers
  const [moves, setMoves] = useState(0);
  const reason = REASONS.includes(query.get("reason")) ? query.get("reason") : null;
  const after = query.get("after");
  const before = query.get("before");
  const cursor = query.get("cursor");
  const poll = usePoll((options) => get(topicPath(topic), {}, options), 10_000, [topic]);
  const changed = () => {
    poll.refresh();
    setChanges((n) => n + 1);
  };
  const moved = () => {
    changed();
    setMoves((n) => n + 1);
  };
  const filter = { topic, reason: reason ?? undefined, died_after: after ?? undefined, died_before: before ?? undefined };
  const shown = { topic, reason, after, before };
  const button = (action, className) => html`<${ButtonWithReason} className=${className} reason=${me.whyNot("edit")}
    onClick=${() => setAsked(action)}>${words.open[action]}<//>`;
  return html`<${Page} title=${words.titleOf(topic)} crumb=${{ to: "/dead", label: words.page }} error=${poll.error}
      actions=${html`${button("redrive", "button-primary")}${button("purge", "button-remove")}`}>${() => html`
    ${poll.data?.policy.dead_to && html`<${Notice}>${words.deadTo} <${Link} to="/tasks"
      query=${{ topic: poll.data.policy.dead_to }}><bdi>${poll.data.policy.dead_to}</bdi><//><//>`}
    <${TimeFilter} key=${`${after} ${before}`} ...${{ after, before }} isDeath
      onShow=${(times) => navigate(withQuery("/dead", { topic, reason, ...times }))} />
    ${poll.data && html`<${Reasons} key=${`${changes} ${after} ${before}`} total=${poll.data.dead}
      ...${{ topic, reason, after, before }} />`}
    <${TaskList} key=${moves} me=${me} onChanged=${changed}
      request=${{ ...filter, state: "dead", cursor: cursor ?? undefined }}
      pageTo=${(next) => ({ to: "/dead", query: { ...shown, cursor: next } })} />
    ${asked && html`<${MoveDialog} action=${asked} filter=${filter} topicRate=${poll.data?.policy.rate}
      onClose=${() => setAsked(null)} onDone=${moved} />`}`}<//>`;
}

/** The reasons as tabs. Their numbers are counted where that is cheap, or if somebody asks for them. */
function Reasons({ topic, total, reason, after, before }) {
  const [numbers, setNumbers] = useState({});
  const [isCounting, setCounting] = useState(false);
  const countAll = async (signal) => {
    setCounting(true);
    let known = 0;
    for (const name of REASONS) {
      if (known >= total) break;
      const times = { died_after: after ?? undefined, died_before: before ?? undefined };
      const found = await countMoves("redrive", { topic, reason: name, ...times }, { signal });
      known += found.count;
      setNumbers((old) => ({ ...old, [name]: found }));
    }
    setCounting(false);
  };
  useEffect(() => {
    if (total === 0 || total > COUNTED_AT_ONCE) return undefined;
    const abort = new AbortController();
    countAll(abort.signal).catch(() => setCounting(false));
    return () => abort.abort();
  }, []);
  const isKnown = Object.keys(numbers).length > 0 && !isCounting;
  const names = isKnown ? REASONS.filter((name) => numbers[name]?.count || name === reason) : REASONS;
  const tab = (name, label, text) => html`<${Link} key=${label} class="tab" to="/dead" title=${words.meanings[name]}
    query=${{ topic, reason: name, after, before }} aria-current=${name === reason ? "page" : undefined}>${label}
    <span class="tab-count">${text}</span><//>`;
  const numberOf = (name) => (numbers[name] ? `${numbers[name].isLeast ? "≥ " : ""}${count(numbers[name].count)}` : "");
  return html`<nav class="tabs" aria-label=${words.reason}>
    ${tab(null, words.all, after || before ? "" : count(total))}
    ${names.map((name) => tab(name, name, numberOf(name)))}
    ${!isKnown && total > COUNTED_AT_ONCE && html`<button class="button button-small button-quiet"
      title=${words.countHint} onClick=${() => countAll().catch(() => setCounting(false))}>
      ${isCounting ? words.counting : words.countReasons}</button>`}
  </nav>`;
}
