// The page of a task that is not there: a normal sight, because most tasks are delivered and gone.

import { Empty, Notice, Panel } from "../lib/components.js";
import { Time } from "../lib/format.js";
import { html } from "../lib/html.js";
import { taskWords } from "../lib/words/tasks.js";
import { Life } from "./life.js";

const words = taskWords.notHere;

/** Say that a task is not there, and what is known: `seen.task` if this page saw it, `by` if it ended it. */
export function NotHere({ remembered, seen, by }) {
  return html`
    <${Empty} title=${words.title}>
      <p>${by ?? (remembered ? words.remembered : words.text)}</p>
      ${!by && html`<p class="muted">${remembered ? words.rememberedNote : words.note}</p>`}
    <//>
    ${seen.task && html`
      ${!by && seen.goneAt && html`<${Notice}>${words.watched(taskWords.states[seen.task.state])} <${Time} at=${seen.at} />.<//>`}
      <${Panel} title=${words.lastSeen}><${Life} task=${seen.task} now=${seen.at} /><//>`}`;
}
