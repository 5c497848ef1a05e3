// The form that changes a task, and that creates one like another. A field that is not marked is not sent.

import { ErrorNotice, Field } from "../lib/components.js";
import { Dialog } from "../lib/dialog.js";
import { html, useRef, useState } from "../lib/html.js";
import { taskWords } from "../lib/words/tasks.js";
import { fromInput, toInput } from "./times.js";

const words = taskWords.form;
const FIELDS = ["due", "content", "callback", "retry", "ttl", "headers", "context"];

/** The values of the form's controls for a task. */
function valuesOf(task, now) {
  const lines = (names = []) => names.map((name) => `${name}: `).join("\n");
  const dueAt = task.due_at ? Date.parse(task.due_at) : now;
  return {
    topic: task.topic,
    id: "",
    dueBy: "in",
    in: String(Math.max(0, Math.round((dueAt - now) / 1000))),
    at: toInput(dueAt),
    content: task.content ?? "",
    callback: task.callback ?? "",
    retry: String(task.max_retry ?? ""),
    ttl: task.expires_at ? String(Math.round(Date.parse(task.expires_at) / 1000 - task.creat_time)) : "",
    headers: lines(task.headers),
    context: lines(task.context),
  };
}

/** Return an object of lines such as `name: value`. Throws an error with the field. */
function objectOf(field, text) {
  const pairs = text.split("\n").filter((line) => line.trim()).map((line) => {
    const colon = line.indexOf(":");
    if (colon < 1) throw Object.assign(new Error(words.noColon(line)), { field });
    return [line.slice(0, colon).trim(), line.slice(colon + 1).trim()];
  });
  return Object.fromEntries(pairs);
}

/** Return what the marked fields say. An empty one means that the task has none of it. */
function bodyOf(values, fields) {
  const body = {};
  const numberOf = (name) => (values[name] === "" ? null : Number(values[name]));
  for (const field of fields) {
    if (field === "due") {
      if (values.dueBy === "in") body.delay = Number(values.in);
      else body.execute_time = fromInput(values.at);
    } else if (field === "headers" || field === "context") body[field] = objectOf(field, values[field]);
    else if (field === "retry" || field === "ttl") body[field] = numberOf(field);
    else body[field] = field === "callback" ? values.callback || null : values[field];
  }
  return body;
}

/** The body of a create leaves out what is empty: the policy of the topic decides. */
function createOf(values) {
  const isEmpty = (value) => value === null || value === "" || (typeof value === "object" && !Object.keys(value).length);
  const all = Object.entries({ topic: values.topic, id: values.id, ...bodyOf(values, FIELDS) });
  return Object.fromEntries(all.filter(([, value]) => !isEmpty(value)));
}

/** Ask for changes of `task`, or for a new one like it. `onSend(body)` makes the call. */
export function TaskForm({ task, isEdit, now, onSend, onClose }) {
  const [values, setValues] = useState(() => valuesOf(task, now));
  const [marked, setMarked] = useState(new Set());
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const form = useRef(null);
  const set = (name) => (event) => setValues({ ...values, [name]: event.target.value });
  const mark = (field) => (event) => {
    const next = new Set(marked);
    if (event.target.checked) next.add(field);
    else next.delete(field);
    setMarked(next);
  };
  const send = async () => {
    if (isBusy || !form.current.reportValidity()) return;
    setError(null);
    setBusy(true);
    try {
      await onSend(isEdit ? { id: task.id, ...bodyOf(values, FIELDS.filter((field) => marked.has(field))) } : createOf(values));
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  const fieldOf = (name) => (name === "delay" || name === "execute_time" ? "due" : name?.split(".")[0]);
  const wrong = error && fieldOf(error.field);
  const isTold = wrong && (isEdit ? marked.has(wrong) : FIELDS.includes(wrong) || wrong === "topic" || wrong === "id");
  const errorOf = (field) => (isTold && wrong === field ? error.message : null);
  const control = (field) => html`<${Field} key=${field} label=${words.labels[field]} error=${errorOf(field)}
    hint=${isEdit ? words.editHints[field] : words.hints[field]}>
    ${(props) => html`<${Control} ...${{ field, values, set, props, isEdit }} />`}<//>`;
  const close = () => { if (!isBusy) onClose(); };
  const isOff = isBusy || (isEdit && marked.size === 0);
  return html`<${Dialog} title=${isEdit ? words.editTitle : words.copyTitle} onClose=${close} className="dialog-wide">
    <form ref=${form} class="dialog-body task-form" onSubmit=${(event) => event.preventDefault()}>
      <p class="muted">${isEdit ? words.editNote : words.copyNote(task.headers || task.context)}</p>
      ${!isEdit && ["topic", "id"].map(control)}
      ${FIELDS.map((field) => (isEdit ? html`<div key=${field} class="change">
        <label class="check-label"><input type="checkbox" checked=${marked.has(field)} onChange=${mark(field)}
          data-focus=${field === "due"} /> ${words.change[field]}</label>
        ${marked.has(field) && control(field)}</div>` : control(field)))}
      ${error && !isTold && html`<${ErrorNotice} error=${error} />`}
      ${error?.type === "in-flight" && html`<p>${words.inFlight}</p>`}
    </form>
    <div class="dialog-actions">
      <button class="button" onClick=${close}>${words.cancel}</button>
      <button class="button button-primary" aria-disabled=${isOff ? "true" : undefined}
        onClick=${() => !isOff && send()}>${isEdit ? words.save : words.create}</button>
    </div>
  <//>`;
}

function Control({ field, values, set, props, isEdit }) {
  if (field === "due") {
    const byDelay = values.dueBy === "in";
    return html`<div class="due-control">
      <select class="input" aria-label=${words.dueBy} value=${values.dueBy} onChange=${set("dueBy")}>
        <option value="in">${words.in}</option><option value="at">${words.at}</option></select>
      ${byDelay
        ? html`<input class="input" type="number" min="0" step="any" required value=${values.in} onInput=${set("in")} ...${props} />`
        : html`<input class="input" type="datetime-local" step="1" required value=${values.at} onInput=${set("at")} ...${props} />`}
    </div>`;
  }
  const shared = { class: "input", value: values[field], onInput: set(field), ...props };
  if (field === "content" || field === "headers" || field === "context") {
    return html`<textarea ...${shared} rows=${field === "content" ? 6 : 3}></textarea>`;
  }
  if (field === "retry" || field === "ttl") {
    return html`<input ...${shared} type="number" min="0" step=${field === "retry" ? 1 : "any"}
      required=${isEdit && field === "retry"} />`;
  }
  return html`<input ...${shared} type="text" dir="auto" autocomplete="off" required=${field === "topic"} />`;
}
