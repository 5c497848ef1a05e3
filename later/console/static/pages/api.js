// The description of the API, readable: every call by its subject, with a search and a link to each.

import { get } from "../lib/api.js";
import { Empty, ErrorNotice, FilterInput, Loading, withCode } from "../lib/components.js";
import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { usePoll } from "../lib/poll.js";
import { BASE, loadStyles } from "../lib/router.js";
import { referenceWords as words } from "../lib/words/reference.js";
import { Operation, operationsOf } from "../reference/operation.js";

await loadStyles("reference");

export function title() {
  return words.page;
}

export default function ApiPage() {
  const poll = usePoll((options) => get("/openapi.json", {}, options), 0);
  return html`<div class="page">
    ${poll.data ? html`<${Description} root=${poll.data} />`
      : html`<h1>${words.page}</h1><${ErrorNotice} error=${poll.error} />${poll.loading && html`<${Loading} />`}`}
  </div>`;
}

function Description({ root }) {
  const [text, setText] = useState("");
  const [opened, setOpened] = useState(() => new Set());
  const operations = useMemo(() => operationsOf(root), [root]);
  const wanted = text.trim().toLowerCase().split(/\s+/);
  const shown = operations.filter((operation) => wanted.every((word) => operation.text.includes(word)));
  const groups = root.tags.map((tag) => ({ ...tag, operations: shown.filter(({ operation }) => operation.tags[0] === tag.name) }))
    .filter((group) => group.operations.length > 0);
  const toggle = (id, isOpen) => {
    if (isOpen === opened.has(id)) return;
    const next = new Set(opened);
    if (isOpen) next.add(id);
    else next.delete(id);
    setOpened(next);
  };
  useAnchor(operations, (id) => setOpened((before) => new Set([...before, id])));
  return html`
    <header class="page-head"><div><h1>${words.page} <span class="page-kind">${words.version(root.info.version)}</span></h1></div>
      <div class="page-actions"><${FilterInput} label=${words.search} value=${text} onInput=${setText} />
        <span class="muted nowrap" role="status">${words.found(shown.length)}</span>
        <a class="button" href=${`${BASE}/openapi.json`}>${words.raw}</a></div></header>
    <p class="muted page-foot">${withCode(root.info.description)}</p>
    <div class="reference">
      <nav class="reference-nav" aria-label=${words.contents}>${groups.map((group) => html`<div key=${group.name}>
        <h2>${group.name}</h2><ul>${group.operations.map(({ id, method, path, operation }) => html`<li key=${id}>
          <a href=${`#${id}`} title=${`${method} ${path}`}>${operation.summary.replace(/\.$/, "")}</a></li>`)}</ul></div>`)}</nav>
      <div class="page">
        ${groups.length === 0 && html`<${Empty} title=${words.nothing} />`}
        ${groups.map((group) => html`<section key=${group.name} class="panel" aria-labelledby=${`tag-${group.name}`}>
          <header class="panel-head"><h2 id=${`tag-${group.name}`}>${group.name}</h2>
            <span class="panel-note">${group.description}</span></header>
          ${group.operations.map((found) => html`<details key=${found.id} id=${found.id} class="operation"
              open=${opened.has(found.id)} onToggle=${(event) => event.target.id === found.id && toggle(found.id, event.target.open)}>
            <summary><span class=${`method method-${found.method.toLowerCase()}`}>${found.method}</span>
              <code class="operation-path">${found.path}</code> <span class="operation-summary">${found.operation.summary}</span></summary>
              <a class="operation-link" href=${`#${found.id}`} aria-label=${words.link(found.id)}>#</a>
            ${opened.has(found.id) && html`<${Operation} found=${found} root=${root} />`}</details>`)}
        </section>`)}
      </div>
    </div>`;
}

/** Open the operation that the URL names after its `#`, now and when that changes, and show it. */
function useAnchor(operations, open) {
  useEffect(() => {
    const show = () => {
      const id = decodeURIComponent(location.hash.slice(1));
      if (!operations.some((operation) => operation.id === id)) return;
      open(id);
      requestAnimationFrame(() => {
        const details = document.getElementById(id);
        details?.scrollIntoView();
        details?.querySelector("summary").focus({ preventScroll: true });
      });
    };
    show();
    addEventListener("hashchange", show);
    return () => removeEventListener("hashchange", show);
  }, [operations]);
}
