// The sign-in: a key is exchanged for a cookie.

import { post } from "../lib/api.js";
import { ErrorNotice, Field, withCode } from "../lib/components.js";
import { html, useState } from "../lib/html.js";
import { announce } from "../lib/live_region.js";
import { refreshMe } from "../lib/me.js";
import { navigate } from "../lib/router.js";
import { fleetWords } from "../lib/words/fleet.js";

const words = fleetWords.signIn;

export function title() {
  return words.page;
}

/** Return the page to go to: one of the console's own, whatever the URL says. */
export function nextPage(query) {
  const next = query.get("next") ?? "/";
  const url = next.startsWith("/") && !/^\/[/\\]/.test(next) ? new URL(next, "http://console.invalid") : null;
  return url?.host === "console.invalid" && url.pathname !== "/sign-in" ? url.pathname + url.search : "/";
}

export default function SignInPage({ query }) {
  const [key, setKey] = useState("");
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    if (isBusy) return;
    setBusy(true);
    setError(null);
    let wrong = words.wrong;
    try {
      await post("/console/session", { key: key.trim() });
      wrong = words.notKept;
      await refreshMe();
      announce(words.done);
      navigate(nextPage(query), { replace: true });
    } catch (failure) {
      setError(Object.assign(failure, { wrong }));
      setKey("");
    }
    setBusy(false);
  };
  const wrong = error?.status === 401 ? error.wrong : error?.status === 400 ? error.message : null;
  return html`<div class="sign-in"><form class="panel sign-in-form" onSubmit=${submit} autocomplete="off">
    <h1>${words.page}</h1>
    <p class="muted">${words.text}</p>
    <${Field} label=${words.key} hint=${words.hint} error=${wrong}>${(props) => html`
      <input class="input" type="password" name="later-key" autocomplete="off" required autofocus
        value=${key} onInput=${(event) => setKey(event.target.value)} ...${props} />`}<//>
    ${!wrong && html`<${ErrorNotice} error=${error} />`}
    <button class="button button-primary">${isBusy ? words.working : words.submit}</button>
    <p class="muted sign-in-help">${withCode(words.help)}</p>
  </form></div>`;
}
