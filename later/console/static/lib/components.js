// The parts that pages are made of.

import { html, useEffect, useId, useRef, useState } from "./html.js";
import { capitalized } from "./format.js";
import { announce } from "./live_region.js";
import { Link } from "./router.js";
import { words } from "./words.js";

export { Table } from "./table.js";

const classes = (...names) => names.filter(Boolean).join(" ");

const GLYPHS = {
  ok: "M4 8.5 7 11.5 12.5 5",
  warn: "M8 4v5M8 11.6v.4",
  bad: "M5 5l6 6M11 5l-6 6",
  info: "M8 7.5v4M8 4.6V5",
};

/** A level as a shape: never by its colour alone. */
export function LevelIcon({ level }) {
  return html`<svg class="icon level-${level}" viewBox="0 0 16 16" role="img" aria-label=${words.levelNames[level]}>
    <circle cx="8" cy="8" r="7.25" class="icon-disc" /><path d=${GLYPHS[level]} class="icon-sign" />
  </svg>`;
}

/** The sentence that says how things are, largest on its page. `to` is where it leads. */
export function Sentence({ level, text, to, toLabel, children }) {
  return html`<div class=${classes("sentence", `level-${level}`)}>
    <${LevelIcon} level=${level} />
    <div class="sentence-body">
      <p class="sentence-text" dir="auto">${text}</p>
      ${(to || children) && html`<div class="sentence-more">
        ${to && html`<${Link} to=${to} class="sentence-link"><bdi>${toLabel}</bdi><span aria-hidden="true"> →</span><//>`}
        ${children}
      </div>`}
    </div>
  </div>`;
}

/** A figure with its name. `sub` stands below, `children` hold an action; `to` makes the figure a link. */
export function Tile({ label, value, unit, sub, level, title, to, query, children }) {
  const figure = html`<span class="tile-number" title=${title}>${value}</span>
    ${unit && html`<span class="tile-unit"> ${unit}</span>`}`;
  return html`<div class=${classes("tile", level && `level-${level}`)}>
    <dt class="tile-label">${label}${level && level !== "ok" && html` <${LevelIcon} level=${level} />`}</dt>
    <dd class="tile-value">${to ? html`<${Link} to=${to} query=${query} class="tile-link">${figure}<//>` : figure}</dd>
    <dd class="tile-sub">${sub}${children}</dd>
  </div>`;
}

export function Tiles({ label, children }) {
  return html`<dl class="tiles" aria-label=${label}>${children}</dl>`;
}

/** A short mark: `level` is ok, warn, bad, info or nothing. */
export function Badge({ level, title, children }) {
  return html`<span class=${classes("badge", level && `level-${level}`)} title=${title}>${children}</span>`;
}

/** A part of a page with its heading and, at its end, controls. */
export function Panel({ title, note, actions, children, className }) {
  const id = useId();
  return html`<section class=${classes("panel", className)} aria-labelledby=${id}>
    <header class="panel-head"><h2 id=${id}>${title}</h2>${note && html`<span class="panel-note">${note}</span>`}
      ${actions && html`<div class="panel-actions">${actions}</div>`}</header>
    ${children}
  </section>`;
}

export function Notice({ level = "info", title, children, role }) {
  return html`<div class=${classes("notice", `level-${level}`)} role=${role}>
    <${LevelIcon} level=${level} />
    <div class="notice-body">${title && html`<strong>${title}</strong>`} ${children}</div>
  </div>`;
}

/** An error of a call, in the API's words. */
export function ErrorNotice({ error, children }) {
  if (!error) return null;
  const level = error.status === 0 || error.status >= 500 ? "bad" : "warn";
  const incident = error.body?.incident;
  return html`<${Notice} level=${level} role="alert">
    <span dir="auto">${capitalized(error.message)}</span>${incident && html` <code>${incident}</code>`} ${children}
  <//>`;
}

/** Return a text of ours with what stands between backticks, such as commands, as code. */
export function withCode(text) {
  return text.split("`").map((part, i) => (i % 2 ? html`<code>${part}</code>` : part));
}

/** The place of something that is not there, with what to do about it. */
export function Empty({ title, text, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${text && html`<p>${withCode(text)}</p>`}${children}</div>`;
}

export function Loading() {
  return html`<p class="loading" role="status">${words.loading}</p>`;
}

/** A control with its label, hint and error. `children` is a function of the control's properties. */
export function Field({ label, hint, error, children, className }) {
  const id = useId();
  const describedBy = classes(hint && `${id}-hint`, error && `${id}-error`) || undefined;
  return html`<div class=${classes("field", error && "field-wrong", className)}>
    <label for=${id}>${label}</label>
    ${children({ id, "aria-describedby": describedBy, "aria-invalid": error ? "true" : undefined })}
    ${hint && html`<p class="field-hint" id="${id}-hint">${hint}</p>`}
    ${error && html`<p class="field-error" id="${id}-error" role="alert">${error}</p>`}
  </div>`;
}

/** A text by which what is shown is filtered. */
export function FilterInput({ label, value, onInput }) {
  return html`<input class="input page-filter" type="search" aria-label=${label} placeholder=${label} value=${value}
    autocomplete="off" onInput=${(event) => onInput(event.target.value)} />`;
}

/** A button that says why it is off: it can be focused, and its reason is its description. */
export function ButtonWithReason({ disabled, reason, onClick, children, className, ...rest }) {
  const id = useId();
  const isOff = Boolean(disabled || reason);
  const click = (event) => (isOff ? event.preventDefault() : onClick?.(event));
  return html`<span class="reasoned">
    <button type="button" class=${classes("button", className)} aria-disabled=${isOff ? "true" : undefined}
      aria-describedby=${isOff && reason ? id : undefined} onClick=${click} ...${rest}>${children}</button>
    ${isOff && reason && html`<span class="reason" role="tooltip" id=${id}>${reason}</span>`}
  </span>`;
}

/** Copy `text`; also over plain http, where the browser has no clipboard for pages. */
export async function copyText(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // The permission is refused: the other way may still work.
    }
  }
  const focused = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return done;
}

export function CopyButton({ text, label = "", className }) {
  const [said, setSaid] = useState("");
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    const told = (await copyText(text)) ? words.copy.copied : words.copy.failed;
    announce(told);
    setSaid(told);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setSaid(""), 2000);
  };
  return html`<button class=${classes("button button-small copy", className)} onClick=${copy}
    aria-label=${label ? words.copy.label(label) : undefined}>${said || words.copy.copy}</button>`;
}

/** A text to copy, such as a command. */
export function Snippet({ text, label }) {
  return html`<div class="snippet"><pre tabindex="0" aria-label=${label}><code>${text}</code></pre>
    <${CopyButton} text=${text} label=${label} /></div>`;
}

/** A choice of few: `options` is `[[value, label]]`. */
export function Segments({ label, options, value, onChange }) {
  return html`<div class="segments" role="group" aria-label=${label}>${options.map(([name, text]) => html`
    <button key=${name} class="segment" aria-pressed=${name === value ? "true" : "false"}
      onClick=${() => onChange(name)}>${text}</button>`)}</div>`;
}

/** The links of a list's pages; `pageTo(cursor)` is the `{to, query}` of one. */
export function Pager({ cursor, next, pageTo }) {
  if (!cursor && !next) return null;
  return html`<nav class="pager" aria-label=${words.pager.label}>
    ${cursor && html`<${Link} class="button" ...${pageTo(null)}>${words.pager.first}<//>`}
    ${next && html`<${Link} class="button" ...${pageTo(next)}>${words.pager.next}<//>`}</nav>`;
}

/** A component of a module that is loaded only then. */
export function Lazy({ load, name, ...props }) {
  const [module, setModule] = useState(null);
  useEffect(() => { load().then(setModule, () => setModule({ [name]: NotThere })); }, []);
  return module && html`<${module[name]} ...${props} />`;
}

const NotThere = () => html`<${Notice} level="bad" role="alert">${words.failure.noModule}<//>`;
