// Tasks of a topic by their state and due time; every filter is in the URL.

import { get } from "../lib/api.js";
import { Empty, Field } from "../lib/components.js";
import { count } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { usePoll } from "../lib/poll.js";
import { Link, navigate, topicPath, withQuery } from "../lib/router.js";
import { learnTopics, TOPIC_NAMES } from "../lib/search.js";
import { taskWords } from "../lib/words/tasks.js";
import { TaskList } from "../tasks/list.js";
import { Page, TimeFilter } from "../tasks/parts.js";

const words = taskWords.list;
const STATES = ["pending", "delay", "unack", "error", "dead"];

export function title({ query }) {
  return query.get("topic") ? words.titleOf(query.get("topic")) : words.page;
}

export default function TasksPage({ query, me }) {
  const topic = query.get("topic") ?? "";
  const state = STATES.includes(query.get("state")) ? query.get("state") : "pending";
  const after = query.get("after") ?? "";
  const before = query.get("before") ?? "";
  const cursor = query.get("cursor");
  const counts = usePoll((options) => (topic ? get(topicPath(topic), {}, options) : null), 0, [topic]);
  const shown = { topic, state: state === "pending" ? "" : state, after, before };
  const by = state === "dead" ? "died" : "due";
  const request = { topic, state, [`${by}_after`]: after || undefined, [`${by}_before`]: before || undefined };
  const show = (times, name) => navigate(withQuery("/tasks", { ...shown, ...times, topic: name }));
  return html`<${Page} title=${words.page}>${() => html`
    <${Filters} key=${JSON.stringify(shown)} ...${{ topic, after, before, isDeath: state === "dead", show }} />
    ${topic ? html`<${States} counts=${counts.data} shown=${shown} state=${state} />
      <${TaskList} request=${cursor ? { ...request, cursor } : request} me=${me} onChanged=${counts.refresh}
        pageTo=${(next) => ({ to: "/tasks", query: { ...shown, cursor: next } })} />`
      : html`<${Empty} title=${words.choose} text=${words.chooseText} />`}
    <p class="muted page-foot">${words.noSearch}</p>`}<//>`;
}

/** The states of a task as tabs, with the number of each. */
function States({ counts, shown, state }) {
  const numberOf = (name) => (counts ? name === "pending" ? counts.delay + counts.unack + counts.error : counts[name] : null);
  return html`<nav class="tabs" aria-label=${words.state}>${STATES.map((name) => html`
    <${Link} key=${name} class="tab" to="/tasks" query=${{ ...shown, state: name === "pending" ? "" : name }}
      aria-current=${name === state ? "page" : undefined}>${taskWords.states[name]}
      <span class="tab-count">${counts ? count(numberOf(name)) : ""}</span><//>`)}</nav>`;
}

function Filters({ topic, show, ...times }) {
  const [name, setName] = useState(topic);
  return html`<${TimeFilter} ...${times} onShow=${(chosen) => show(chosen, name)}>
    <${Field} label=${words.topic} className="field-topic">${(props) => html`<${TopicInput} value=${name}
      onInput=${(event) => setName(event.target.value)} ...${props} />`}<//><//>`;
}

/** An input of a topic, with the search's proposals: a help, so it does without them where they do not come. */
function TopicInput(props) {
  usePoll(async (options) => {
    const { topics } = await get("/topics", { sort: "delay", limit: 200 }, options);
    learnTopics(topics.map(({ topic }) => topic));
  }, 0);
  return html`<input class="input" list=${TOPIC_NAMES} dir="auto" required autocomplete="off" ...${props} />`;
}
