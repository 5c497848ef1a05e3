// URLs of pages: what each one shows, and links to it. Every view has a URL of its own.

import { html } from "./html.js";
import { Observable, useObservable } from "./observable.js";

export const BASE = document.documentElement.dataset.base;
const ROOT = `${BASE}/console`;

/** Patterns of paths and the modules that draw them. */
const ROUTES = [
  ["/", () => import("../pages/overview.js")],
  ["/topics", () => import("../pages/topics.js")],
  ["/topics/:topic", () => import("../pages/topic.js")],
  ["/tasks", () => import("../pages/tasks.js")],
  ["/tasks/:id", () => import("../pages/task.js")],
  ["/dead", () => import("../pages/dead.js")],
  ["/workers", () => import("../pages/workers.js")],
  ["/jobs", () => import("../pages/jobs.js")],
  ["/jobs/:id", () => import("../pages/job.js")],
  ["/schedules", () => import("../pages/schedules.js")],
  ["/api", () => import("../pages/api.js")],
  ["/sign-in", () => import("../pages/sign_in.js")],
];

const current = new Observable(read());

function read() {
  const path = location.pathname.startsWith(ROOT) ? location.pathname.slice(ROOT.length) : location.pathname;
  return { path: path || "/", query: new URLSearchParams(location.search), key: history.state?.key ?? 0 };
}

addEventListener("popstate", () => { current.value = read(); });

/** Return the present `{path, query}`; the path is still percent-encoded. */
export function useLocation() {
  return useObservable(current);
}

/** Return the URL of a page. `path` has its names encoded already, as `topicPath` does; empty values are left out. */
export function link(path, query) {
  return ROOT + withQuery(path, query);
}

/** Return a path with its query as `navigate` takes it: `link` without the base. */
export function withQuery(path, query = {}) {
  const values = new URLSearchParams();
  for (const [name, value] of query instanceof URLSearchParams ? query : Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) values.append(name, String(value));
  }
  const text = values.toString();
  return path + (text && `?${text}`);
}

/** Go to a page of the console, as `link` names it without the base: `navigate("/topics?sort=due")`. */
export function navigate(path, { replace = false } = {}) {
  go(`${ROOT}${path}`, replace);
}

/** Change values of the query and stay on the page; null removes one. */
export function changeQuery(changes, { replace = false } = {}) {
  const { path, query } = current.value;
  go(link(path, { ...Object.fromEntries(query), ...changes }), replace);
}

function go(url, replace) {
  const before = location.pathname;
  if (url === location.pathname + location.search) replace = true;
  history[replace ? "replaceState" : "pushState"](null, "", url);
  current.value = read();
  if (!replace && location.pathname !== before) scrollTo(0, 0);
}

/** Load a stylesheet that only some pages need. */
export function loadStyles(name) {
  const { promise, resolve } = Promise.withResolvers();
  const sheet = Object.assign(document.createElement("link"), { rel: "stylesheet", onload: resolve, onerror: resolve });
  sheet.href = `${ROOT}/static/css/${name}.css`;
  document.head.append(sheet);
  return promise;
}

/** Encode a name as one segment of a path. */
export function segment(name) {
  return encodeURIComponent(name.toWellFormed?.() ?? name);
}

/** Encode a topic for a path, of the console or of the API.
 *
 * A browser resolves `.` and `..` even if they are encoded, so those are written with their namespace.
 */
export function topicSegment(topic) {
  return segment(topic === "." || topic === ".." ? `default/${topic}` : topic);
}

export function topicPath(topic) {
  return `/topics/${topicSegment(topic)}`;
}

/** Return the path of a task; `.` and `..`, which browsers would resolve, are in the query. */
export function taskPath(id) {
  return id === "." || id === ".." ? `/tasks?id=${id}` : `/tasks/${segment(id)}`;
}

export function jobPath(id) {
  return `/jobs/${segment(id)}`;
}

/** Return `{pattern, load, params}` of a location, or null if there is no such page. */
export function matchRoute({ path, query }) {
  const parts = path.replace(/(?<=.)\/$/, "").split("/");
  if (path === "/tasks" && query.has("id")) {
    const [pattern, load] = ROUTES.find(([name]) => name === "/tasks/:id");
    return { pattern, load, params: { id: query.get("id") } };
  }
  for (const [pattern, load] of ROUTES) {
    const params = matchParts(pattern.split("/"), parts);
    if (params) return { pattern, load, params };
  }
  return null;
}

function matchParts(names, parts) {
  if (names.length !== parts.length) return null;
  const params = {};
  for (const [i, name] of names.entries()) {
    if (!name.startsWith(":")) {
      if (name !== parts[i]) return null;
      continue;
    }
    try {
      const text = decodeURIComponent(parts[i]);
      params[name.slice(1)] = name === ":topic" ? text.replace(/^default\/(\.\.?)$/, "$1") : text; // see `topicSegment`
    } catch {
      return null; // the percent signs are not an encoding
    }
    if (!parts[i]) return null;
  }
  return params;
}

/** A link to a page of the console: `to` as for `link`. Other properties are those of `<a>`. */
export function Link({ to, query, children, onClick, ...rest }) {
  const url = to.includes("?") ? `${ROOT}${to}` : link(to, query);
  const click = (event) => {
    onClick?.(event);
    const isPlain = !event.defaultPrevented && event.button === 0
      && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
    if (!isPlain) return;
    event.preventDefault();
    go(url, false);
  };
  return html`<a href=${url} onClick=${click} ...${rest}>${children}</a>`;
}
