// The banner below the header: that later, its store or the session is away, or that later was updated.

import { html, useEffect, useRef, useState } from "./html.js";
import { LevelIcon } from "./components.js";
import { connection, update } from "./connection.js";
import { capitalized, duration } from "./format.js";
import { announce } from "./live_region.js";
import { useObservable } from "./observable.js";
import { refreshAll } from "./poll.js";
import { Link, useLocation, withQuery } from "./router.js";
import { words } from "./words.js";

const BACK_SHOWN_MS = 6000;
const TEXTS = {
  unreachable: words.banner.unreachable, "store-away": words.banner.storeAway, "signed-out": words.banner.signedOut,
};

export function Banner() {
  const { state, detail, since } = useObservable(connection);
  const updated = useObservable(update);
  const back = useReturn(state);
  const { path, query } = useLocation();
  if (state === "signed-out") {
    if (path === "/sign-in") return null;
    return html`<${Bar} level="warn" text=${TEXTS[state]}>
      <${Link} class="button button-small" to="/sign-in" query=${{ next: withQuery(path, query) }}>${words.banner.signIn}<//><//>`;
  }
  if (state !== "ok") {
    return html`<${Bar} level="bad" text=${TEXTS[state]} detail=${detail}><${Since} at=${since} />
      <button class="button button-small" onClick=${refreshAll}>${words.banner.retry}</button><//>`;
  }
  if (updated) {
    return html`<${Bar} level="info" text=${words.banner.updated(updated.from, updated.to)}>
      <button class="button button-small" onClick=${() => location.reload()}>${words.banner.reload}</button><//>`;
  }
  return back ? html`<${Bar} level="ok" text=${back} />` : null;
}

function Bar({ level, text, detail, children }) {
  return html`<div class="banner level-${level}"><div class="banner-body"><${LevelIcon} level=${level} />
    <p class="banner-text"><strong>${text}</strong>${detail && html` <span class="banner-detail" dir="auto">${capitalized(detail)}</span>`}</p>
    <div class="banner-end">${children}</div></div></div>`;
}

/** How long it has been so, counted by this browser. */
function Since({ at }) {
  const [, redraw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => redraw((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.floor((Date.now() - at) / 1000);
  return seconds < 3 ? null : html`<span class="muted">${words.banner.since(duration(seconds))}</span>`;
}

/** Return for a while that what was away is back, and say both. */
function useReturn(state) {
  const before = useRef("ok");
  const [text, setText] = useState("");
  useEffect(() => {
    const was = before.current;
    before.current = state;
    if (state !== "ok") {
      announce(TEXTS[state]);
      setText("");
      return undefined;
    }
    if (was === "ok" || was === "signed-out") return undefined;
    const told = was === "store-away" ? words.banner.storeBack : words.banner.back;
    announce(told);
    setText(told);
    refreshAll();
    const timer = setTimeout(() => setText(""), BACK_SHOWN_MS);
    return () => clearTimeout(timer);
  }, [state]);
  return text;
}
