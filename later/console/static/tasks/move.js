// A redrive or a purge of many tasks: its question, and its progress, which goes on over other pages.

import { post } from "../lib/api.js";
import { ErrorNotice, Field, Notice } from "../lib/components.js";
import { ConfirmDialog } from "../lib/dialog.js";
import { count, duration } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/html.js";
import { announce } from "../lib/live_region.js";
import { useObservable } from "../lib/observable.js";
import { deadWords as words } from "../lib/words/dead.js";
import { currentMove } from "./current_move.js";
import { countMoves, diedBefore, moveAll } from "./slices.js";

const SAMPLE = 5;
const TYPED_FROM = 100; // so many are purged only after the topic's name was typed

const warnOfLeaving = (event) => event.preventDefault();

/** Return why no move can begin now; empty if one can. */
export function useWhyNotMove() {
  return useObservable(currentMove)?.state === "runs" ? words.oneAtATime : "";
}

/** Move the tasks of `parts`, `{filter, most}` each. People are told the filter `scope`, and were asked about `total`. */
export async function startMove({ action, scope, parts, rate, total }, onDone) {
  const abort = new AbortController();
  const change = (changes) => { currentMove.value = { ...currentMove.value, ...changes }; };
  currentMove.value = { action, scope, rate, total, moved: 0, state: "runs", error: null, stop: () => abort.abort() };
  addEventListener("beforeunload", warnOfLeaving);
  try {
    let isWhole = true;
    for (const { filter, most } of parts) {
      const before = currentMove.value.moved;
      const onProgress = (moved) => change({ moved: before + moved });
      isWhole = await moveAll(action, { filter, most, rate, signal: abort.signal, onProgress });
    }
    change({ state: isWhole ? "done" : "stopped" });
  } catch (error) {
    change({ state: "failed", error });
  }
  removeEventListener("beforeunload", warnOfLeaving);
  announce(words.ended(currentMove.value));
  onDone();
}

/** Ask whether to redrive or purge all dead tasks of a filter, and start it. */
export function MoveDialog({ action, filter, topicRate, onClose, onDone }) {
  const [typed, setTyped] = useState(null);
  const [found, setFound] = useState({ sample: [] });
  const whyNot = useWhyNotMove();
  useEffect(() => {
    const abort = new AbortController();
    const { signal } = abort;
    Promise.all([
      countMoves(action, filter, { signal }), post("/list", { ...filter, state: "dead", limit: SAMPLE }, { signal }),
    ]).then(([counted, { tasks }]) => setFound({ ...counted, sample: tasks.map((task) => task.id) }),
      (error) => { if (!signal.aborted) setFound({ error, sample: [] }); });
    return () => abort.abort();
  }, []);
  const rate = typed ?? (topicRate ? String(topicRate) : "");
  const perSecond = Number(rate) > 0 ? Number(rate) : null;
  const isWrong = rate !== "" && !(Number(rate) >= 0.0001);
  const reason = isWrong ? words.wrongRate : found.error ? " " : found.count === undefined ? words.counting
    : found.count === 0 ? words.nothing : whyNot;
  const number = found.count === undefined ? "…" : `${found.isLeast ? words.atLeast : ""}${count(found.count)}`;
  const begin = async () => {
    const parts = [{ filter: diedBefore(filter, found.at) }];
    startMove({ action, scope: filter, parts, rate: perSecond, total: found.count }, onDone);
  };
  return html`<${ConfirmDialog} title=${words.ask[action](number, found.count === 1)} count=${found.count ?? 0}
      sample=${found.sample} confirmLabel=${words.verb[action]} danger=${action === "purge"} reason=${reason}
      typeToConfirm=${action === "purge" && found.count >= TYPED_FROM ? filter.topic : undefined}
      onConfirm=${begin} onClose=${onClose}>
    <p><bdi>${words.scope(filter)}</bdi></p>
    <${ErrorNotice} error=${found.error} />
    ${action === "purge" ? html`<p>${words.purgeNote}</p>` : html`
      <${Field} label=${words.rate} hint=${topicRate ? words.rateOfTopic : words.rateHint}>${(props) => html`
        <input class="input" type="number" min="0.0001" step="any" value=${rate} placeholder=${words.noRate}
          onInput=${(event) => setTyped(event.target.value)} ...${props} />`}<//>
      <p aria-live="polite">${perSecond && found.count ? words.takes(duration(found.count / perSecond)) : words.takesNoTime}</p>`}
  <//>`;
}

/** Draw the progress of the present move, and its end until somebody puts it away. */
export function MoveProgress() {
  const move = useObservable(currentMove);
  if (!move) return null;
  const { action, scope, rate, total, moved, state, error } = move;
  if (state !== "runs") {
    const level = state === "done" ? "ok" : state === "failed" ? "bad" : "warn";
    return html`<div class="move-end"><${Notice} level=${level}><bdi>${words.scope(scope)}</bdi>: ${words.ended(move)}
      ${error && ` ${error.message}`} <button class="button button-small" onClick=${() => { currentMove.value = null; }}>${words.close}</button>
    <//></div>`;
  }
  const left = rate ? words.left(duration(Math.max(0, total - moved) / rate)) : "";
  return html`<section class="move" aria-label=${words.doing[action]}>
    <div class="move-head"><strong>${words.doing[action]}</strong> <bdi>${words.scope(scope)}</bdi>
      <button class="button button-small" onClick=${move.stop}>${words.stop}</button></div>
    <progress max=${Math.max(total, 1)} value=${moved} aria-label=${words.doing[action]}></progress>
    <p class="muted">${words.progress(count(moved), count(total))} ${left} ${words.keepOpen}</p>
  </section>`;
}
