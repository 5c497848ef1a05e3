// A topic's policy: each value and its level.

import { html, useState } from "../lib/html.js";
import { Badge, ButtonWithReason, ErrorNotice, Lazy, Notice, Panel } from "../lib/components.js";
import { announce } from "../lib/live_region.js";
import { FIELD_GROUPS, showValue } from "../lib/policy_fields.js";
import { fieldWords, topicWords as words } from "../lib/words/topic.js";

export function PolicyPanel({ topic, policy: { data, error, refresh }, me, onChanged }) {
  const [isEdited, setEdited] = useState(false);
  const [told, setTold] = useState("");
  const edit = html`<${ButtonWithReason} className="button-small" reason=${me.whyNot("admin")} onClick=${() => setEdited(true)}>
    ${words.edit}<//>`;
  const done = (warning) => {
    setEdited(false);
    setTold(warning ?? "");
    announce(words.saved);
    refresh();
    onChanged();
  };
  return html`<${Panel} title=${words.policy} note=${words.policyNote} actions=${data && !isEdited && edit}>
    ${error && !data && html`<div class="panel-body"><${ErrorNotice} error=${error} /></div>`}
    ${told && html`<div class="panel-body"><${Notice} level="warn"><span dir="auto">${told}</span><//></div>`}
    ${data && (isEdited ? html`<${Lazy} load=${() => import("./topic_policy_form.js")} name="PolicyForm" ...${{ topic, applied: data, onDone: done, onCancel: () => setEdited(false) }} />`
    : html`<div class="policy">${Object.entries(FIELD_GROUPS).map(([group, kinds]) => html`<section key=${group}>
      <h3>${words.groups[group]}</h3><dl>${Object.keys(kinds).filter((name) => data[name]).map((name) => html`
        <div key=${name} title=${fieldWords[name]} class="policy-${data[name].level}"><dt>${name}</dt>
          <dd><bdi>${showValue(name, data[name].value)}</bdi> <${Level} level=${data[name].level} /></dd></div>`)}</dl>
      </section>`)}</div>`)}<//>`;
}

/** The level that sets a value. Most values are the daemon's: those of others stand out. */
function Level({ level }) {
  return level === "daemon" ? html`<span class="policy-level">${level}</span>`
    : html`<${Badge} level=${level === "topic" ? "info" : undefined}>${level}<//>`;
}
