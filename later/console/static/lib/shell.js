// The frame around every page: header, banner, the page of the present URL, and what stands there if it fails.

import { html, useEffect, useErrorBoundary, useRef, useState } from "./html.js";
import { Banner } from "./banner.js";
import { Empty, Lazy, Loading, Notice } from "./components.js";
import { connection } from "./connection.js";
import { Dialog } from "./dialog.js";
import { Header, PAGES } from "./header.js";
import { isTyping, shortcuts, useShortcut } from "./keyboard.js";
import { announce } from "./live_region.js";
import { refreshMe, useMe } from "./me.js";
import { useObservable } from "./observable.js";
import { refreshAll, usePoll } from "./poll.js";
import { Link, matchRoute, navigate, useLocation, withQuery } from "./router.js";
import { isLive, setLive, showsUtc } from "./settings.js";
import { currentMove } from "../tasks/current_move.js";
import { words } from "./words.js";

const RETRY_MS = 5000;
const loadMove = () => import("../tasks/move.js");

export function App() {
  const location = useLocation();
  const [showsKeys, setShowsKeys] = useState(false);
  const [isReady, setReady] = useState(false);
  const { state } = useObservable(connection);
  const { loaded } = useMe();
  const move = useObservable(currentMove);
  useEffect(() => { refreshMe().catch(() => {}).finally(() => setReady(true)); }, []);
  useEffect(() => { if (state === "ok" && isReady) refreshMe().catch(() => {}); }, [state]);
  useEffect(() => { if (state === "signed-out" && !loaded) goToSignIn(location); }, [state, loaded, location]);
  useKeys(() => setShowsKeys(true));
  return html`
    <a class="skip" href="#main" onClick=${focusMain}>${words.skip}</a>
    <${Header} location=${location} onKeys=${() => setShowsKeys(true)} />
    <${Banner} />
    <main id="main" tabindex="-1">${move && html`<${Lazy} load=${loadMove} name="MoveProgress" />`}${isReady && html`<${CurrentPage} location=${location} />`}</main>
    ${showsKeys && html`<${KeysDialog} onClose=${() => setShowsKeys(false)} />`}
  `;
}

/** Go to the sign-in, and back from there to what was asked for. */
function goToSignIn({ path, query }) {
  if (path === "/sign-in") return;
  navigate(withQuery("/sign-in", { next: withQuery(path, query) }), { replace: true });
}

function focusMain(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function useKeys(showKeys) {
  for (const [path, name, key] of PAGES.filter(([, , key]) => key)) {
    useShortcut(`g ${key}`, () => navigate(path), words.keys.goTo(name));
  }
  useShortcut("r", refreshAll, words.keys.refresh);
  useShortcut("p", () => {
    setLive(!isLive.value);
    announce(isLive.value ? words.live.started : words.live.stopped);
  }, words.keys.live);
  useShortcut("u", () => {
    showsUtc.value = !showsUtc.value;
    announce(showsUtc.value ? words.utc.on : words.utc.off);
  }, words.keys.utc);
  useShortcut("?", showKeys, words.keys.list);
}

/** The list of keys that act on the present page. */
function KeysDialog({ onClose }) {
  const shown = new Map();
  for (const { key, help } of useObservable(shortcuts)) if (help) shown.set(key, help);
  if (document.querySelector("main tbody a")) shown.set("Enter", words.keys.enter);
  return html`<${Dialog} title=${words.keys.title} onClose=${onClose}>
    <table class="keys"><thead class="visually-hidden"><tr><th scope="col">${words.keys.key}</th>
      <th scope="col">${words.keys.does}</th></tr></thead>
    <tbody>${[...shown].map(([key, help]) => html`<tr key=${key}><td>${key.split(" ").map((part) => html`<kbd>${part}</kbd> `)}</td>
      <td>${help}</td></tr>`)}</tbody></table>
    <div class="dialog-actions"><button class="button" onClick=${onClose} data-focus="">${words.keys.close}</button></div>
  <//>`;
}

/** The page of a location. The one before stays until the module of the next is there. */
function CurrentPage({ location }) {
  const route = matchRoute(location);
  const [shown, setShown] = useState(null);
  const wanted = useRef(null);
  const [tries, setTries] = useState(0);
  const id = route ? `${route.pattern} ${JSON.stringify(route.params)}` : "";
  useEffect(() => {
    wanted.current = id;
    if (!route) return;
    const show = (module) => { if (wanted.current === id) setShown({ id, route, module }); };
    route.load().then(show, (error) => show({ error }));
  }, [id, tries]);
  const isCurrent = shown?.id === id;
  const title = pageTitle(route, isCurrent ? shown.module : null, location);
  useTitle(title, id);
  if (!route) return html`<${NotFound} />`;
  if (!shown) return html`<${Loading} />`;
  if (shown.module.error) return html`<${NotLoaded} onAnswer=${() => setTries((n) => n + 1)} />`;
  const { module, route: { params } } = shown;
  return html`<${Guarded} key=${shown.id}><${Drawn} ...${{ page: module.default, params, query: location.query }} /><//>`;
}

function Drawn({ page, params, query }) {
  const me = useMe();
  return html`<${page} ...${{ params, query, me }} />`;
}

function pageTitle(route, module, { query }) {
  if (!route) return words.notFound.title;
  return module?.title ? module.title({ params: route.params, query }) : null;
}

/** Set the document's title; after a change of page say it, and move the focus to the page's beginning.
 *
 * Somebody who has begun to search while the page came is left alone.
 */
function useTitle(title, id) {
  const before = useRef(null);
  useEffect(() => {
    if (title === null) return;
    document.title = words.title(title);
    if (before.current !== null && before.current !== id) {
      announce(title);
      if (!isTyping(document.activeElement)) document.getElementById("main").focus({ preventScroll: true });
    }
    before.current = id;
  }, [title, id]);
}

function Guarded({ children }) {
  const [error, reset] = useErrorBoundary((failure) => console.error(failure));
  if (!error) return children;
  return html`<${Notice} level="bad" title=${words.failure.title} role="alert">
    <p>${words.failure.text}</p><pre class="fault">${String(error?.stack ?? error).slice(0, 2000)}</pre>
    <button class="button" onClick=${reset}>${words.failure.again}</button>
  <//>`;
}

function NotFound() {
  return html`<h1 class="visually-hidden">${words.notFound.title}</h1>
    <${Empty} title=${words.notFound.title}><p>${words.notFound.text}</p>
    <p><${Link} class="button" to="/">${words.notFound.home}<//></p><//>`;
}

/** What stands where a page's module did not come: it is asked for again once later answers. */
function NotLoaded({ onAnswer }) {
  usePoll(() => refreshMe().then(onAnswer), RETRY_MS);
  return html`<${Notice} level="bad" title=${words.failure.noModule} role="alert">
    <button class="button" onClick=${() => location.reload()}>${words.banner.reload}</button><//>`;
}
