// Whether later answers, as the last calls have shown it: what the banner tells.

import { Observable } from "./observable.js";

/** `state` is ok, unreachable, store-away or signed-out; `detail` is the API's text, `since` the browser's time. */
export const connection = new Observable({ state: "ok" });
/** The versions before and after an update of the daemon that was seen from here. */
export const update = new Observable(null);

let version = null;

/** Keep the version that an answer names: each names it, but a proxy may hide it. */
export function reportVersion(seen) {
  version ??= seen;
  if (seen && seen !== version && update.value?.to !== seen) update.value = { from: version, to: seen };
}

export function report(state, detail = "") {
  const now = connection.value;
  if (now.state === state && now.detail === detail) return;
  connection.value = { state, detail, since: now.state === state ? now.since : Date.now() };
}

/** Keep what the outcome of a call says about the connection. That the store is back, `/readyz` alone can say. */
export function reportError(error) {
  if (error.status === 0) report("unreachable");
  else if (error.status === 401) report("signed-out");
  else if (["store-away", "store-mismatch"].includes(error.type)) report("store-away", error.detail);
  else if (error.status === 502 || error.status === 504) report("unreachable");
  else if (connection.value.state !== "store-away") reportAnswer(true);
}

/** Keep that an answer came; `isOpen` if it says nothing about the session. */
export function reportAnswer(isOpen) {
  if (!isOpen || connection.value.state !== "signed-out") report("ok");
}
