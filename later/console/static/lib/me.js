// What the signed-in key may do, as `/whoami` says. The API decides; the console only says beforehand why not.

import { del, get } from "./api.js";
import { connection, report, reportVersion } from "./connection.js";
import { Observable, useObservable } from "./observable.js";
import { link } from "./router.js";
import { words } from "./words.js";

export const isReadOnlyMode = document.documentElement.dataset.mode === "readonly";

const me = new Observable(null);

/** Ask who we are: at the start, after a sign-in, and when later answers again. */
export async function refreshMe() {
  const answer = await get("/whoami");
  reportVersion(answer.version);
  me.value = answer;
  if (connection.value.state === "signed-out") report("ok");
}

/** Let the browser forget the session, and this page all that it has shown. */
export async function signOut() {
  await del("/console/session");
  location.assign(link("/sign-in"));
}

/** Return what `/whoami` says and `whyNot(scope)`; before the answer `loaded` is false. */
export function useMe() {
  return describe(useObservable(me));
}

function describe(answer) {
  const scopes = answer?.scopes ?? [];
  const acts = (scope) => scope !== "read" && scope !== "metrics";
  const whyNot = (scope) => {
    if (answer === null) return words.me.unknown;
    if (isReadOnlyMode && acts(scope)) return words.me.readOnly;
    return scopes.includes(scope) ? "" : words.me.lacks(scope);
  };
  return {
    loaded: answer !== null,
    version: answer?.version ?? "",
    key: answer?.key ?? null,
    namespace: answer?.namespace ?? null,
    whyNot,
  };
}
