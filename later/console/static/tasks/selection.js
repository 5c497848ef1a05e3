// The bar above a table of tasks: what can be done with those that are selected.

import { post } from "../lib/api.js";
import { ButtonWithReason, Notice } from "../lib/components.js";
import { ConfirmDialog } from "../lib/dialog.js";
import { html, useState } from "../lib/html.js";
import { announce } from "../lib/live_region.js";
import { taskWords } from "../lib/words/tasks.js";

const words = taskWords.list;
const MOST = 1000;
const SAMPLE = 5;

/** Make a call about many tasks, and say in a sentence what has become of them. */
async function act(action, ids) {
  const answer = action === "delete"
    ? await post("/delete/batch", ids.map((id) => ({ id })))
    : await post(`/${action}`, { ids });
  const done = words.did[action](action === "delete" ? answer.deleted : answer.moved);
  const left = Object.entries(words.left)
    .filter(([name]) => answer[name] && !(action === "delete" && name === "in_flight"))
    .map(([name, text]) => text(answer[name]));
  const refused = answer.results.find((result) => result.error && result.error.status !== 404)?.error.detail;
  return { text: `${[done, ...left].join("; ")}.`, detail: refused && words.why(refused), isWhole: left.length === 0 };
}

export function SelectionBar({ selected, state, me, onClear, changed }) {
  const [asked, setAsked] = useState(null);
  const [told, setTold] = useState(null);
  const ids = [...selected];
  const reason = me.whyNot("edit") || (ids.length > MOST ? words.tooMany(MOST) : "");
  const confirm = async () => {
    const outcome = await act(asked, ids);
    setTold(outcome);
    announce(outcome.text);
    changed();
  };
  const button = (action, className, why = "") => html`<${ButtonWithReason} className=${className} reason=${reason || why}
    onClick=${() => setAsked(action)}>${words.verb[action]}<//>`;
  return html`
    ${told && html`<${Notice} level=${told.isWhole ? "ok" : "warn"}>${told.text} ${told.detail}<//>`}
    ${ids.length > 0 && html`<div class="selection" role="group" aria-label=${words.selected(ids.length)}>
      <strong>${words.selected(ids.length)}</strong>
      ${button("run-now", "")}
      ${button("redrive", "", state === "dead" ? "" : words.onlyDead)}
      ${button("delete", "button-remove")}
      <button class="button button-quiet" onClick=${onClear}>${words.clear}</button>
    </div>`}
    ${asked && html`<${ConfirmDialog} title=${words.ask[asked](ids.length)} count=${ids.length}
      sample=${ids.slice(0, SAMPLE)} confirmLabel=${words.verb[asked]} danger=${asked === "delete"}
      onConfirm=${confirm} onClose=${() => setAsked(null)}><p>${words.askNote[asked]}</p><//>`}`;
}
