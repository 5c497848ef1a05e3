// The question before the tasks of a topic are removed for good.

import { ErrorNotice } from "../lib/components.js";
import { ConfirmDialog } from "../lib/dialog.js";
import { count } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/html.js";
import { topicWords as words } from "../lib/words/topic.js";
import { startMove, useWhyNotMove } from "./move.js";
import { countMoves, diedBefore } from "./slices.js";

const STATES = ["delay", "error", "dead"]; // that can be purged

/** Ask which tasks to remove for good, as they were counted at first. */
export function PurgeDialog({ topic, onDone, onClose }) {
  const [found, setFound] = useState({ states: {} });
  const [chosen, setStates] = useState(null);
  const whyNot = useWhyNotMove();
  useEffect(() => {
    countMoves("purge", { topic, states: STATES }).then(setFound, (error) => setFound({ error, states: {} }));
  }, []);
  const states = chosen ?? STATES.filter((state) => found.states[state]);
  const sum = (names) => names.reduce((total, state) => total + (found.states[state] ?? 0), 0);
  const toggle = (state) => setStates(states.includes(state) ? states.filter((one) => one !== state) : [...states, state]);
  const purge = async () => {
    const alive = states.filter((state) => state !== "dead");
    const parts = [{ filter: { topic, states: alive }, most: sum(alive) }];
    if (states.includes("dead")) parts.push({ filter: diedBefore({ topic }, found.at) });
    const scope = { topic, states: states.map((state) => words[state].toLowerCase()) };
    startMove({ action: "purge", scope, parts, total: sum(states) }, onDone);
  };
  const reason = found.error ? " " : !found.at ? words.counting : sum(states) ? whyNot : words.nothing;
  return html`<${ConfirmDialog} title=${words.purgeTitle} danger typeToConfirm=${topic} reason=${reason}
    confirmLabel=${words.purgeLabel(count(sum(states)))} onConfirm=${purge} onClose=${onClose}>
    <p>${words.purgeText}</p><${ErrorNotice} error=${found.error} />
    <fieldset class="choices"><legend>${words.states}</legend>${STATES.map((state) => html`<label key=${state}
      class="check-label"><span class="check"><input type="checkbox" checked=${states.includes(state)} disabled=${!found.states[state]}
        onChange=${() => toggle(state)} /></span>${words[state]} <span class="muted">${count(found.states[state] ?? 0)}</span></label>`)}</fieldset><//>`;
}
