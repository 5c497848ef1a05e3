// The form that changes a topic's policy. Only what changed is sent.

import { html, useEffect, useState } from "../lib/html.js";
import { get, patch } from "../lib/api.js";
import { ConfirmDialog } from "../lib/dialog.js";
import { FIELD_GROUPS, FIELD_KINDS, readValue, showValue, writeValue } from "../lib/policy_fields.js";
import { segment, topicSegment } from "../lib/router.js";
import { namespaceOf } from "../lib/topic_parts.js";
import { fieldWords, topicWords as words } from "../lib/words/topic.js";
import { RateChange } from "./topic_forecast.js";

/** Return the values as they are typed: `{isHere, text}` by field. */
function draftOf(applied) {
  return Object.fromEntries(Object.entries(applied).filter(([name]) => name in FIELD_KINDS).map(([name, { value, level }]) => (
    [name, { isHere: level === "topic", text: writeValue(FIELD_KINDS[name], value) }])));
}

/** Return the changes as a PATCH: a value, or null where the field inherits again. */
function changesOf(draft, before) {
  const changes = {};
  for (const [name, { isHere, text }] of Object.entries(draft)) {
    const was = before[name];
    if (isHere && !(was.isHere && was.text === text)) changes[name] = readValue(FIELD_KINDS[name], text);
    if (!isHere && was.isHere) changes[name] = null;
  }
  return changes;
}

export function PolicyForm({ topic, applied, onDone, onCancel }) {
  const [before] = useState(() => draftOf(applied));
  const [draft, setDraft] = useState(before);
  const [inherited, setInherited] = useState({});
  const [wrong, setWrong] = useState(null);
  const [asks, setAsks] = useState(false);
  useEffect(() => {
    get(`/namespaces/${segment(namespaceOf(topic))}/policy`, { applied: true }).then(setInherited, () => {});
  }, [topic]);
  const changes = changesOf(draft, before);
  const names = Object.keys(changes);
  const rate = changes.rate === null ? inherited.rate?.value : changes.rate; // unless it makes no sense
  const change = (name, values) => setDraft((all) => ({ ...all, [name]: { ...all[name], ...values } }));
  const save = async () => {
    try {
      setWrong(null);
      const { warning } = await patch(`/topics/${topicSegment(topic)}/policy`, changes);
      onDone(warning);
    } catch (error) {
      setWrong(error);
      if (!(error.field in draft)) throw error;
    }
  };
  const submit = (event) => {
    event.preventDefault();
    if (names.length) setAsks(true);
  };
  return html`<form class="policy-form" onSubmit=${submit}>
    <div class="table-scroll" role="region" tabindex="0" aria-label=${words.policy}><table class="table">
      <thead><tr><th scope="col">${words.field}</th><th scope="col">${words.value}</th></tr></thead>
      ${Object.entries(FIELD_GROUPS).map(([group, kinds]) => html`<tbody key=${group}>
        <tr class="group"><th scope="rowgroup" colspan="2">${words.groups[group]}</th></tr>
        ${Object.keys(kinds).filter((name) => name in draft).map((name) => html`<${FieldRow} key=${name} ...${{
    name, value: draft[name], inherited: inherited[name], isChanged: name in changes, onChange: (values) => change(name, values),
    error: wrong?.field === name ? wrong.message : "",
  }} />`)}</tbody>`)}
    </table></div>
    <div class="dialog-actions"><button type="button" class="button" onClick=${onCancel}>${words.cancel}</button>
      <button type="submit" class="button button-primary" aria-disabled=${names.length ? undefined : "true"}>${words.save(names.length)}</button></div>
    ${asks && html`<${ConfirmDialog} title=${words.saveTitle(names.length)} confirmLabel=${words.saveLabel} onConfirm=${save}
      onClose=${() => setAsks(false)}><ul class="sample">${names.map((name) => html`<li key=${name}>${name}: ${" "}
        <bdi>${shown(name, before[name])}</bdi> → <bdi>${changes[name] === null ? words.inherit : shown(name, draft[name])}</bdi></li>`)}</ul>
      ${typeof rate === "number" && html`<${RateChange} ...${{ topic, rate }} />`}<//>`}
  </form>`;
}

const shown = (name, { isHere, text }) => (isHere || text ? showValue(name, readValue(FIELD_KINDS[name], text)) : words.none);

function FieldRow({ name, value: { isHere, text }, inherited, isChanged, error, onChange }) {
  const kind = FIELD_KINDS[name];
  const props = {
    id: `policy-${name}`, "aria-label": name, "aria-describedby": `policy-${name}-hint`, "aria-invalid": error ? "true" : undefined,
    value: text, onInput: (event) => onChange({ text: event.target.value }),
  };
  const choices = Array.isArray(kind) ? kind : kind === "switch" ? ["on", "off"] : null;
  const from = inherited ? words.inherits(showValue(name, inherited.value), inherited.level) : words.inherit;
  return html`<tr class=${isChanged ? "row-selected" : ""}>
    <th scope="row"><label class="check-label"><span class="check"><input type="checkbox" checked=${isHere}
      aria-label=${words.here(name)} onChange=${(event) => onChange({ isHere: event.target.checked })} /></span>${name}</label></th>
    <td class="cell-wrap ${error ? "field-wrong" : ""}">
      ${!isHere && html`<span class="muted"><bdi>${from}</bdi></span>`}
      ${isHere && (choices ? html`<select class="select" ...${props}>${choices.map((one) => html`<option key=${one}>${one}</option>`)}</select>`
    : html`<input class="input" autocomplete="off" ...${props} />`)}
      <p class="field-hint" id="policy-${name}-hint">${fieldWords[name]}</p>
      ${error && html`<p class="field-error" role="alert">${error}</p>`}</td></tr>`;
}
