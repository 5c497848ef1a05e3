// Calls of later's API, the same that scripts make.

import { connection, reportAnswer, reportError, reportVersion } from "./connection.js";
import { BASE } from "./router.js";
import { learnTime, serverNow } from "./server_clock.js";
import { words } from "./words.js";

export { serverNow };

const TIMEOUT_MS = 15_000;
const READY = "/readyz";
const OPEN = ["/openapi.json", "/console/session", READY];

/** An error of a call. `status`: 0 if nothing came; `type`: the last part of the problem's. */
export class ApiError extends Error {
  constructor({ status, type = "", title = "", detail = "", field = null, body = null }) {
    super(detail || title);
    Object.assign(this, { status, type, title, detail, field, body });
  }
}

export const get = (path, query, { signal } = {}) => call("GET", path, { query, signal });
export const post = (path, body = {}, options = {}) => call("POST", path, { ...options, body });
export const patch = (path, body, options = {}) => call("PATCH", path, { ...options, body });
export const del = (path, query, options = {}) => call("DELETE", path, { ...options, query });

async function call(method, path, { query, body, signal }) {
  const url = BASE + path + queryText(query);
  const init = { method, signal: withTimeout(signal), headers: { Accept: "application/json" }, cache: "no-store" };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["Content-Type"] = "application/json";
  }
  let response;
  let text;
  try {
    response = await fetch(url, init);
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    const isLate = error.name === "TimeoutError";
    throw failed({ status: 0, type: isLate ? "timeout" : "unreachable", detail: words.noAnswer(isLate) });
  }
  const answer = parse(text);
  learnTime(answer?.at, response.headers.get("Date"));
  reportVersion(response.headers.get("Server")?.match(/^later\/(.+)/)?.[1]);
  if (!response.ok) throw failed(asProblem(response.status, answer));
  if (connection.value.state === "store-away" && path !== READY) get(READY).catch(() => {}); // this one may come from memory
  else reportAnswer(OPEN.includes(path));
  return answer;
}

function failed(problem) {
  const error = new ApiError(problem);
  reportError(error);
  return error;
}

function asProblem(status, answer) {
  if (answer === null || typeof answer !== "object") return { status, detail: words.status(status) };
  return {
    status,
    type: String(answer.type ?? "").split("/").pop(),
    title: answer.title,
    detail: answer.detail || answer.title || words.status(status),
    field: answer.field ?? null,
    body: answer,
  };
}

function parse(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}

function queryText(query = {}) {
  const values = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") values.append(name, String(value));
  }
  const text = values.toString();
  return text && `?${text}`;
}

function withTimeout(signal) {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  return signal ? AbortSignal.any([signal, timeout]) : timeout;
}
