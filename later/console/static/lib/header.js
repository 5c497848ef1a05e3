// The header: where one can go, the search, whether the page is live, and the theme.

import { html, useEffect, useState } from "./html.js";
import { duration } from "./format.js";
import { announce } from "./live_region.js";
import { isReadOnlyMode, signOut, useMe } from "./me.js";
import { useObservable } from "./observable.js";
import { pictureAt } from "./poll.js";
import { Link } from "./router.js";
import { Search } from "./search.js";
import { chooseTheme, isLive, setLive, theme, THEMES } from "./settings.js";
import { words } from "./words.js";

/** The pages: their paths and names, and the keys that lead there after `g`. */
export const PAGES = [
  ["/", words.nav.overview, "o"], ["/topics", words.nav.topics, "t"], ["/tasks", words.nav.tasks],
  ["/dead", words.nav.dead, "d"], ["/workers", words.nav.workers, "w"], ["/schedules", words.nav.schedules, "s"],
  ["/jobs", words.nav.jobs, "j"], ["/api", words.nav.api],
];
const FRESH_S = 15; // a picture is as old as that where a page asks seldom

export function Header({ location, onKeys }) {
  const [isOpen, setOpen] = useState(false);
  const { version, namespace, key } = useMe();
  useEffect(() => setOpen(false), [location.path]);
  const closeOnEscape = (event) => { if (event.key === "Escape" && isOpen) setOpen(false); };
  return html`<header class="top ${isOpen ? "top-open" : ""}" onKeyDown=${closeOnEscape}>
    <div class="top-bar">
      <${Link} to="/" class="brand" title=${version && `later ${version}`}><${Mark} /><span>${words.name}</span><//>
      <nav id="pages" class="top-nav" aria-label=${words.nav.label}>${PAGES.map(([path, name]) => html`
        <${Link} key=${path} to=${path} class="nav-link" aria-current=${isAt(location.path, path) ? "page" : undefined}>
          ${name}<//>`)}
        ${key && html`<button class="nav-link sign-out" title=${words.nav.signedIn(key)}
          onClick=${() => signOut().catch((error) => announce(error.message))}>${words.nav.signOut}</button>`}</nav>
      <div class="top-tools">
        ${namespace && html`<span class="badge" dir="auto">${namespace}</span>`}
        ${isReadOnlyMode && html`<span class="badge">${words.banner.readOnly}</span>`}
        <${Search} />
        <${LiveSwitch} />
        <${ThemeButton} />
        <button class="icon-button keys-button" onClick=${onKeys} aria-label=${words.keys.open}
          title=${words.keys.open}>?</button>
        <button class="icon-button menu-button" aria-expanded=${isOpen ? "true" : "false"}
          aria-controls="pages" aria-label=${words.nav.menu} onClick=${() => setOpen(!isOpen)}>
          <svg viewBox="0 0 16 16" aria-hidden="true"><path d=${isOpen ? "M4 4l8 8M12 4l-8 8" : "M2 5h12M2 11h12"} /></svg>
        </button>
      </div>
    </div>
  </header>`;
}

function isAt(path, page) {
  return page === "/" ? path === "/" : path === page || path.startsWith(`${page}/`);
}

function Mark() {
  return html`<svg class="mark" viewBox="0 0 32 32" aria-hidden="true"><path class="mark-ring"
    d="M27 16a11 11 0 1 1-5-9.2" /><path d="M16 9v7.5l5 3" /></svg>`;
}

const inOneUnit = (s) => duration(s - (s % (s < 120 ? 1 : s < 3600 ? 60 : 3600))); // fits a phone

/** Whether the page asks again by itself, and how old its picture is. */
function LiveSwitch() {
  const on = useObservable(isLive);
  const okAt = useObservable(pictureAt);
  const [, redraw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => redraw((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const age = okAt === null ? null : (performance.now() - okAt) / 1000;
  const shown = age === null || (on && age < FRESH_S) ? "" : words.live.age(inOneUnit(age));
  const toggle = () => {
    setLive(!on);
    announce(on ? words.live.stopped : words.live.started);
  };
  const level = !on ? "off" : age !== null && age > 45 ? "old" : "on";
  return html`<button class="live live-${level}" aria-pressed=${on ? "true" : "false"} onClick=${toggle}
    title=${`${on ? words.live.stop : words.live.go}${shown && ` · ${shown}`}`}><span class="live-dot" aria-hidden="true" />
    <span>${on ? words.live.on : words.live.off}</span>${shown && html`<span class="live-age" aria-hidden="true">${shown}</span>`}
  </button>`;
}

const THEME_SIGNS = {
  system: "M2 3h12v8H2zM6 14h4M8 11v3",
  light: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6M8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M12.6 3.4l-.7.7M4.1 11.9l-.7.7",
  dark: "M13 9.5A5.8 5.8 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5",
};

function ThemeButton() {
  const name = useObservable(theme);
  const next = THEMES[(THEMES.indexOf(name) + 1) % THEMES.length];
  const label = words.theme.label(words.theme[name]);
  const change = () => {
    chooseTheme(next);
    announce(words.theme.label(words.theme[next]));
  };
  return html`<button class="icon-button" onClick=${change} aria-label=${label} title=${label}>
    <svg viewBox="0 0 16 16" aria-hidden="true"><path d=${THEME_SIGNS[name]} /></svg></button>`;
}
