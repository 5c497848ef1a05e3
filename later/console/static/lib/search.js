// The search: an id goes to its task at once, a topic to its page.

import { html, useEffect, useRef, useState } from "./html.js";
import { ApiError, get, post } from "./api.js";
import { useShortcut } from "./keyboard.js";
import { announce } from "./live_region.js";
import { Observable, useObservable } from "./observable.js";
import { Link, navigate, taskPath, topicPath, topicSegment, useLocation } from "./router.js";
import { words } from "./words.js";

export const TOPIC_NAMES = "topic-names";
const MOST_NAMES = 500;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
const ID = /^([^/]+\/)?[A-Za-z0-9._~:-]{1,128}$/; // or team/order-1
const topicNames = new Observable([]);

/** Keep the names of topics that a page has shown, as proposals. */
export function learnTopics(names) {
  const known = new Set(topicNames.value);
  const fresh = names.filter((name) => !known.has(name));
  if (fresh.length && known.size < MOST_NAMES) topicNames.value = [...known, ...fresh].slice(0, MOST_NAMES);
}

/** Return the path of what is called `text`, or null. A task wins over a topic of the same name. */
async function find(text) {
  if (UUID.test(text)) return taskPath(text);
  const asks = [isTopic(text)];
  if (ID.test(text)) asks.unshift(isTask(text));
  const [task, topic] = asks.length === 2 ? await Promise.all(asks) : [false, await asks[0]];
  if (task) return taskPath(text);
  return topic ? topicPath(text) : null;
}

/** A batch answers 200 also where there is no task, which is nothing that a browser should report as a failure. */
async function isTask(id) {
  const { results: [{ error }] } = await post("/query/batch", [{ id }]);
  if (error && ![400, 404].includes(error.status)) throw new ApiError(error);
  return !error || Boolean(error.ended);
}

async function isTopic(name) {
  try {
    const [topic, policy] = await Promise.all([
      get(`/topics/${topicSegment(name)}`), get(`/topics/${topicSegment(name)}/policy`),
    ]);
    return topic.delay + topic.unack + topic.error + topic.dead > 0 || Object.keys(policy).length > 0;
  } catch (error) {
    if ([400, 403, 404].includes(error.status)) return false;
    throw error;
  }
}

export function Search() {
  const [text, setText] = useState("");
  const [told, setTold] = useState(null);
  const input = useRef(null);
  const names = useObservable(topicNames);
  const { path } = useLocation();
  useEffect(() => setTold(null), [path]);
  useShortcut("/", () => { input.current.focus(); input.current.select(); }, words.keys.search);
  const submit = async (event) => {
    event.preventDefault();
    const wanted = text.trim();
    if (!wanted) return;
    setTold({ text: words.search.searching });
    try {
      const found = await find(wanted);
      if (found) {
        setTold(null);
        setText("");
        input.current.blur();
        navigate(found);
      } else {
        setTold({ text: words.search.nothing(wanted), wanted });
        announce(words.search.nothing(wanted));
      }
    } catch (error) {
      setTold({ text: error.message });
      announce(error.message);
    }
  };
  const key = (event) => {
    if (event.key !== "Escape") return;
    setTold(null);
    input.current.blur();
  };
  return html`<form class="search" role="search" onSubmit=${submit} onKeyDown=${key}>
    <svg class="search-icon" viewBox="0 0 16 16" aria-hidden="true"><path d="M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M10.4 10.4 14 14" /></svg>
    <input ref=${input} class="search-input" type="search" list=${TOPIC_NAMES} aria-label=${words.search.label}
      placeholder=${words.search.placeholder} title=${words.search.hint} value=${text} maxlength="600" autocomplete="off"
      dir="auto" onInput=${(event) => setText(event.target.value)} />
    <kbd class="search-key" aria-hidden="true">/</kbd>
    <datalist id=${TOPIC_NAMES}>${names.map((name) => html`<option key=${name} value=${name} />`)}</datalist>
    ${told && html`<div class="search-told"><p dir="auto">${told.text}</p>
      ${told.wanted && html`<p class="search-links">
        ${ID.test(told.wanted) && html`<${Link} to=${taskPath(told.wanted)}>${words.search.anyTask}<//>`}
        <${Link} to=${topicPath(told.wanted)}>${words.search.anyTopic}<//></p>`}</div>`}
  </form>`;
}
