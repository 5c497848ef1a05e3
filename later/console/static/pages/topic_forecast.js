// What falls due in a topic, and what its rate, or another one, makes of it.

import { html, useEffect, useState } from "../lib/html.js";
import { get } from "../lib/api.js";
import { StackedBars } from "../lib/charts.js";
import { ErrorNotice, Field, Panel } from "../lib/components.js";
import { capitalized, clock, compact, count, decimal, duration, parseTime } from "../lib/format.js";
import { usePoll } from "../lib/poll.js";
import { topicSegment } from "../lib/router.js";
import { topicWords as words } from "../lib/words/topic.js";

const TYPING_MS = 300;

/** Ask for a topic's forecast; with `rate`, as if that were the topic's. */
function useForecast(topic, rate) {
  const load = ({ signal }) => get(`/topics/${topicSegment(topic)}/forecast`, { hours: 6, step: 300, rate }, { signal });
  return usePoll(load, 30_000, [topic, rate]);
}

/** What a rate makes of a forecast, in a sentence or two. */
function forecastText({ from, step_s, due, counts, rate, paused, behind_from, caught_up_at, worst_lateness_s }) {
  if (paused && worst_lateness_s === null) return words.heldByPause;
  if (!rate) return words.noRate;
  const waves = counts.map((n, i) => ({ n, at: parseTime(from) + i * step_s * 1000 }));
  const wave = waves.reduce((most, one) => (one.n > most.n ? one : most), { n: 0 });
  const takes = (n) => duration(n / rate);
  const end = caught_up_at ? words.caughtUp(clock(parseTime(caught_up_at))) : words.notCaughtUp;
  const [first, ...rest] = [
    due > rate && words.backlog(count(due), takes(due)),
    wave.n > rate && words.wave(clock(wave.at), count(wave.n), takes(wave.n)),
    ...(behind_from ? [words.behind(clock(parseTime(behind_from)), duration(worst_lateness_s)), end] : [words.keepsUp]),
  ].filter(Boolean);
  return [words.atRate(decimal(rate), first), ...rest.map(capitalized)].join(" ");
}

export function ForecastPanel({ topic }) {
  const [typed, setTyped] = useState("");
  const rate = useSettled(typed);
  const { data, error } = useForecast(topic, /^\d+(\.\d+)?$/.test(rate) ? rate : undefined);
  const series = [{ label: words.forecastSeries, values: data?.counts ?? [], className: "c-waiting" }];
  const limit = data?.rate ? { perSecond: data.rate, label: words.limit(decimal(data.rate)) } : undefined;
  const sum = (data?.counts ?? []).reduce((total, n) => total + n, 0);
  return html`<${Panel} title=${words.forecast} note=${data && words.forecastSum(compact(sum), compact(data.due))}>
    <div class="panel-body forecast-head">
      <p class="forecast-text" aria-live="polite">${data && forecastText(data)}</p>
      <${Field} label=${words.tryRate} hint=${words.tryHint} error=${error?.field === "rate" && error.message}>${(props) => html`
        <input class="input" inputmode="decimal" value=${typed} placeholder=${data?.rate ? decimal(data.rate) : "0"} autocomplete="off"
          onInput=${(event) => setTyped(event.target.value.trim())} ...${props} />`}<//>
    </div>
    ${error && !data && html`<div class="panel-body"><${ErrorNotice} error=${error} /></div>`}
    <${StackedBars} title=${words.forecast} from=${parseTime(data?.from)} step_s=${data?.step_s} series=${series} how="sum"
      format=${compact} idle=${false} limit=${limit} /><//>`;
}

/** The forecast as it is beside that with another rate, before that is set. */
export function RateChange({ topic, rate }) {
  const now = useForecast(topic, undefined).data;
  const then = useForecast(topic, useSettled(rate)).data;
  return html`<dl class="before-after" aria-live="polite">
    <dt>${words.now}</dt><dd>${now ? forecastText(now) : "…"}</dd>
    <dt>${words.then}</dt><dd>${then ? forecastText(then) : "…"}</dd></dl>`;
}

/** Return a value once it has not changed for a moment. */
function useSettled(value) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), TYPING_MS);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}
