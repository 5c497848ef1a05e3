// Bulk jobs, and what became of their rows.

import { get } from "../lib/api.js";
import { Empty, Pager, Table } from "../lib/components.js";
import { Time, count } from "../lib/format.js";
import { html } from "../lib/html.js";
import { usePoll } from "../lib/poll.js";
import { Link, jobPath } from "../lib/router.js";
import { fleetWords } from "../lib/words/fleet.js";
import { Page } from "../tasks/parts.js";

const words = fleetWords.jobs;

export function title() {
  return words.page;
}

export default function JobsPage({ query }) {
  const cursor = query.get("cursor");
  const poll = usePoll((options) => get("/jobs", { limit: 100, cursor }, options), 10_000, [cursor]);
  const number = (key, isFault) => ({ key, label: words[key], align: "end", render: (row) => html`
    <span class=${row[key] === 0 ? "zero" : isFault ? "fresh" : ""}>${count(row[key])}</span>` });
  const columns = [
    { key: "job", label: words.job, header: true, render: ({ job }) => html`<${Link} to=${jobPath(job)} class="code">${job}<//>` },
    number("created"), number("existing"), number("refused", true),
    { key: "forgotten", label: words.forgotten, hide: "small", render: (row) => html`<${Time} at=${row.forgotten_at} />` },
  ];
  return html`<${Page} title=${words.page} poll=${poll}>${({ jobs, cursor: next }) => (jobs.length === 0
    ? html`<${Empty} title=${words.none} text=${words.noneText} />`
    : html`<section class="panel" aria-label=${words.page}>
      <${Table} caption=${words.page} columns=${columns} rows=${jobs} keyOf=${({ job }) => job} />
      <${Pager} ...${{ cursor, next }} pageTo=${(to) => ({ to: "/jobs", query: { cursor: to } })} /></section>`)}<//>`;
}
