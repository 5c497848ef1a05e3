// What the pages of tasks, instances and jobs have in common.

import { ErrorNotice, Field, Loading } from "../lib/components.js";
import { html, useState } from "../lib/html.js";
import { Link } from "../lib/router.js";
import { taskWords } from "../lib/words/tasks.js";
import { fromInput, toInput } from "./times.js";

const words = taskWords.list;

/** A page with its heading: `children(data)` is drawn once `poll` has data, and `before` always. */
export function Page({ title, crumb, actions, before, poll, error, children }) {
  return html`<div class="page">
    <header class="page-head"><div>${crumb && html`<${Link} to=${crumb.to} class="crumb">← ${crumb.label}<//>`}
      <h1 dir="auto">${title}</h1></div>${actions && html`<div class="page-actions">${actions}</div>`}</header>
    ${before}<${ErrorNotice} error=${error ?? poll?.error} />
    ${poll && poll.data === undefined ? poll.loading && html`<${Loading} />` : children(poll?.data)}
  </div>`;
}

/** A form of a time range and of `children`. `onShow({after, before})` gets RFC 3339 or null. */
export function TimeFilter({ after, before, isDeath, onShow, children }) {
  const [values, setValues] = useState({ after: toInput(Date.parse(after)), before: toInput(Date.parse(before)) });
  const time = (name) => html`<${Field} label=${words[isDeath ? "died" : "due"][name]}>${(props) => html`<input
    class="input" type="datetime-local" step="1" value=${values[name]} ...${props}
    onInput=${(event) => setValues({ ...values, [name]: event.target.value })} />`}<//>`;
  const show = (event) => {
    event.preventDefault();
    onShow({ after: fromInput(values.after), before: fromInput(values.before) });
  };
  return html`<form class="filters" onSubmit=${show} aria-label=${words.filter}>${children}${time("after")}${time("before")}
    <button class="button">${words.show}</button></form>`;
}
