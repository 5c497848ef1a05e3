// A bulk job: its counts, of all its runs or of one. It is cancelled in the shell, where its input is.

import { get } from "../lib/api.js";
import { Empty, Field, Panel, Snippet, Tile, Tiles } from "../lib/components.js";
import { count } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { usePoll } from "../lib/poll.js";
import { jobPath, navigate, segment, withQuery } from "../lib/router.js";
import { fleetWords } from "../lib/words/fleet.js";
import { Page } from "../tasks/parts.js";

const words = fleetWords.jobs;

export function title({ params }) {
  return words.titleOf(params.id);
}

export default function JobPage({ params, query }) {
  const { id } = params;
  const run = query.get("run") ?? "";
  const poll = usePoll((options) => get(`/jobs/${segment(id)}`, { run }, options), 5000, [id, run]);
  const isMissing = poll.error?.status === 404;
  const job = isMissing ? null : poll.data;
  return html`<${Page} title=${html`<span class="page-kind">${words.one}</span> <span class="code">${id}</span>`}
      crumb=${{ to: "/jobs", label: words.page }} error=${isMissing ? null : poll.error}>${() => html`
    ${isMissing && html`<${Empty} title=${words.missing} text=${words.missingText} />`}
    ${job && html`<${Tiles} label=${words.page}>
      <${Tile} label=${words.created} value=${count(job.created)} sub=${words.createdNote} />
      <${Tile} label=${words.existing} value=${count(job.existing)} sub=${words.existingNote} />
      <${Tile} label=${words.refused} value=${count(job.refused)} sub=${words.refusedNote} level=${job.refused ? "warn" : null} />
    <//>`}
    <${RunChoice} key=${run} id=${id} run=${run} />
    ${job && html`<${Panel} title=${words.cancel}><div class="panel-body commands"><p>${words.cancelNote}</p>
      <${Snippet} text=${`later bulk cancel INPUT --job ${id}`} label=${words.cancel} /></div><//>`}`}<//>`;
}

function RunChoice({ id, run }) {
  const [text, setText] = useState(run);
  const show = (event) => {
    event.preventDefault();
    navigate(withQuery(jobPath(id), { run: text.trim() }));
  };
  return html`<form class="filters" onSubmit=${show}>
    <${Field} label=${words.runLabel}>${(props) => html`<input class="input" value=${text} placeholder=${words.allRuns}
      autocomplete="off" onInput=${(event) => setText(event.target.value)} ...${props} />`}<//>
    <button class="button">${words.show}</button></form>`;
}
