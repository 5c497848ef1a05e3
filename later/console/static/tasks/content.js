// What a task carries: its content as text, the names of its headers, and commands that repeat it.

import { CopyButton, Snippet, withCode } from "../lib/components.js";
import { bytes } from "../lib/format.js";
import { html, useMemo, useState } from "../lib/html.js";
import { BASE } from "../lib/router.js";
import { taskWords as words } from "../lib/words/tasks.js";
import { SHOWN, byteLength, curl, cut, indented, visible } from "./readable.js";

const LONGEST_COMMAND = 100_000; // a system takes no argument of 128 KiB

/** Draw a content: JSON with a line for each value, or as it was sent. */
export function Content({ text }) {
  const [isRaw, setRaw] = useState(false);
  const pretty = useMemo(() => indented(text), [text]);
  if (text === "") return html`<p class="panel-body muted">${words.empty}</p>`;
  const whole = pretty === null || isRaw ? text : pretty;
  return html`<div class="content">
    <p class="content-bar">
      <span>${bytes(byteLength(text))}${whole.length > SHOWN && ` · ${words.cut(bytes(SHOWN))}`}</span>
      ${pretty !== null && html`<label class="check-label"><input type="checkbox" checked=${isRaw}
        onChange=${(event) => setRaw(event.target.checked)} /> ${words.asSent}</label>`}
      <${CopyButton} text=${text} label=${words.content} />
    </p>
    <pre class="content-text" tabindex="0" role="region" aria-label=${words.content}>${visible(cut(whole))}</pre>
  </div>`;
}

/** Draw names as a list: values of headers and contexts are never told. */
export function Names({ names }) {
  return html`<ul class="names">${names.map((name) => html`<li key=${name}><code>${visible(name)}</code></li>`)}</ul>`;
}

/** Draw the commands that ask for a task, and that create one like it. */
export function Commands({ task }) {
  const unknown = (names) => names && Object.fromEntries(names.map((name) => [name, "…"]));
  const isLong = (task.content ?? "").length > LONGEST_COMMAND;
  const create = {
    topic: task.topic,
    callback: task.callback ?? undefined,
    content: isLong ? "…" : task.content ?? "",
    retry: task.max_retry ?? undefined,
    headers: unknown(task.headers),
    context: unknown(task.context),
  };
  return html`<div class="panel-body commands">
    <h3>${words.curlQuery}</h3>
    <${Snippet} text=${curl("POST", `${BASE}/query`, { id: task.id })} label=${words.curlQuery} />
    <h3>${words.curlCreate}</h3>
    <${Snippet} text=${curl("POST", `${BASE}/create`, create)} label=${words.curlCreate} />
    <p class="muted">${withCode(words.curlKey)}${(isLong || task.headers || task.context) && ` ${words.curlUnknown}`}</p>
  </div>`;
}
