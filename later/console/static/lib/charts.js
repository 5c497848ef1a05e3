// Charts as SVG: lines, stacked bars, and small bars for tables. Each can be read without seeing it.

import { html, useEffect, useId, useRef, useState } from "./html.js";
import { join, linearTicks, logTicks, timeTicks } from "./chart_scale.js";
import { clock, decimal, duration } from "./format.js";
import { announce } from "./live_region.js";
import { useObservable } from "./observable.js";
import { showsUtc } from "./settings.js";
import { words } from "./words.js";

const HEIGHT = 176;
const PLOT = { top: 10, bottom: 22, left: 46, right: 6 };

/** Draw a chart, or an empty place of its height while its values are not there. */
function draw(props) {
  return props.from ? html`<${Chart} ...${props} />` : html`<div class="chart-wait" />`;
}

/** Bars above each other. `series` are `{label, values, className, pattern}`; `how` is rate, sum or max. */
export function StackedBars(props) {
  return draw({ how: "rate", barWidth: 5, marks: drawBars, ...props });
}

/** Lines with gaps where nobody wrote. `series` are `{label, values, className, dash}`; `log` is for durations. */
export function Lines(props) {
  return draw({ how: "max", barWidth: 2, marks: drawLines, ...props });
}

/** A chart with axes, legend, reading by pointer and arrow keys, and a table of its values.
 *
 * `from` is in ms; `limit` is `{perSecond, label}`, a level across the chart. While nobody reads a value, the legend shows the
 * last ones, unless `idle` is false.
 */
function Chart({ title, from, step_s, series, how, barWidth, marks, format = decimal, log, limit, idle = true, height = HEIGHT }) {
  useObservable(showsUtc);
  const [box, width] = useWidth();
  const [at, setAt] = useState(null);
  const inner = Math.max(40, width - PLOT.left - PLOT.right);
  const data = join({ from, step_s, series, how, most: Math.floor(inner / barWidth) });
  const end = data.start + data.bins * data.stepMs;
  const level = limit && limitLevel(limit, data, how);
  const x = (ms) => PLOT.left + ((ms - data.start) / (end - data.start)) * inner;
  const scale = yScale(data, { isStacked: marks === drawBars, isWhole: how !== "rate", log, limit: level, height });
  const isEmpty = (blank) => data.series.every(({ values }) => values.every(blank));
  const nothing = isEmpty((value) => value === null) ? words.chart.noData : how === "sum" && isEmpty((n) => !n) && words.chart.nothing;
  const shown = at === null ? null : Math.min(at, data.bins - 1);
  const point = (event) => {
    const { left } = event.currentTarget.getBoundingClientRect();
    const bin = Math.floor(((event.clientX - left - PLOT.left) / inner) * data.bins);
    setAt(Math.max(0, Math.min(data.bins - 1, bin)));
  };
  const key = (event) => {
    const next = moved(event.key, shown, data.bins);
    if (next === undefined) return;
    event.preventDefault();
    setAt(next);
    if (next !== null) announce(reading(data, next, format));
  };
  return html`<figure class="chart">
    <${Legend} ...${{ data, shown, format, limit: level && limit, idle, how }} />
    <div ref=${box} class="chart-box">
      ${width > 0 && html`<svg class="chart-svg" width=${width} height=${height} role="img" tabindex="0"
        aria-label=${summary(title, data, format)} onPointerMove=${point} onPointerLeave=${() => setAt(null)}
        onKeyDown=${key} onBlur=${() => setAt(null)}>
        <${Axes} ...${{ scale, format, x, from: data.start, end, width, height }} />
        ${shown !== null && html`<rect class="cursor" x=${x(data.start + shown * data.stepMs)} y=${PLOT.top}
          width=${Math.max(1, inner / data.bins)} height=${height - PLOT.top - PLOT.bottom} />`}
        <${marks} ...${{ data, x, y: scale.y }} />
        ${level && html`<line class="limit" x1=${PLOT.left} x2=${width - PLOT.right} y1=${scale.y(level)} y2=${scale.y(level)} />`}
        ${nothing && html`<text class="chart-none" x=${PLOT.left + inner / 2} y=${height / 2}>${nothing}</text>`}
      </svg>`}
    </div>
    <${DataTable} ...${{ title, data, format }} />
  </figure>`;
}

/** Return a limit in the unit of the marks; null if these could not be seen beside it. */
function limitLevel({ perSecond }, { series, bins, stepMs }, how) {
  const level = how === "sum" ? (perSecond * stepMs) / 1000 : perSecond;
  const most = Math.max(...Array.from({ length: bins }, (_, i) => series.reduce((sum, { values }) => sum + (values[i] ?? 0), 0)));
  return level > most * 3 ? null : level;
}

function useWidth() {
  const box = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return [box, width];
}

function yScale({ series, bins }, { isStacked, isWhole, log, limit, height }) {
  const bottom = height - PLOT.bottom;
  const span = bottom - PLOT.top;
  const all = series.flatMap(({ values }) => values.filter((value) => value !== null && (!log || value > 0)));
  if (log) {
    const ticks = logTicks(Math.min(...all, 0.01), Math.max(...all, 0.01));
    const [low, high] = [Math.log(ticks[0]), Math.log(ticks.at(-1))];
    const y = (value) => bottom - ((Math.log(Math.max(value, ticks[0])) - low) / (high - low)) * span;
    return { ticks, y };
  }
  const totals = isStacked ? Array.from({ length: bins }, (_, i) => series.reduce((sum, one) => sum + (one.values[i] ?? 0), 0)) : all;
  const ticks = linearTicks(Math.max(0, limit ?? 0, ...totals), isWhole);
  return { ticks, y: (value) => bottom - (value / ticks.at(-1)) * span };
}

function moved(key, at, bins) {
  const last = bins - 1;
  if (key === "ArrowLeft") return Math.max(0, (at ?? bins) - 1);
  if (key === "ArrowRight") return Math.min(last, (at ?? -1) + 1);
  return { Home: 0, End: last, Escape: null }[key];
}

function Axes({ scale, format, x, from, end, width, height }) {
  const isWide = end - from > 2 * 86_400_000;
  const ticks = timeTicks(from, end, Math.max(2, (width - 50) / (isWide ? 64 : 74)));
  const label = ({ at, isDay }) => (isDay ? dayName(at) : clock(at));
  const hasRoom = (at) => x(at) > PLOT.left + 14 && x(at) < width - 20;
  return html`<g class="axes">
    ${scale.ticks.map((tick) => html`<line key=${tick} class="grid" x1=${PLOT.left} x2=${width - PLOT.right} y1=${scale.y(tick)}
      y2=${scale.y(tick)} /><text key="t${tick}" x=${PLOT.left - 6} y=${scale.y(tick) + 4} text-anchor="end">${format(tick)}</text>`)}
    ${ticks.map((tick) => html`<line key=${tick.at} class="tick" x1=${x(tick.at)} x2=${x(tick.at)} y1=${height - PLOT.bottom}
      y2=${height - PLOT.bottom + 4} />${hasRoom(tick.at) && html`<text key="t${tick.at}" x=${x(tick.at)} y=${height - 5}
      text-anchor="middle">${label(tick)}</text>`}`)}
  </g>`;
}

function dayName(ms) {
  const zone = showsUtc.value ? { timeZone: "UTC" } : {};
  return new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", ...zone }).format(ms);
}

function drawBars({ data, x, y }) {
  const id = useId();
  const slot = x(data.start + data.stepMs) - x(data.start);
  const width = Math.max(1, slot - (slot > 3 ? 1 : 0));
  const bars = [];
  for (let i = 0; i < data.bins; i += 1) {
    let base = 0;
    for (const [n, { values, className, pattern }] of data.series.entries()) {
      const value = values[i];
      if (!value) continue;
      const top = y(base + value);
      const rise = Math.max(1, y(base) - top);
      bars.push(html`<rect key="${i}-${n}" class="bar ${className}" x=${x(data.start + i * data.stepMs)} y=${y(base) - rise}
        width=${width} height=${rise} />`);
      if (pattern) {
        bars.push(html`<rect key="${i}-${n}p" x=${x(data.start + i * data.stepMs)} y=${y(base) - rise} width=${width}
          height=${rise} fill="url(#${id}-${pattern})" />`);
      }
      base += value;
    }
  }
  return html`<g><${Patterns} id=${id} />${bars}</g>`;
}

const PATTERNS = { hatch: "M-1 1l2-2M0 5l5-5M4 6l2-2", dots: "M1 1h1.5v1.5H1z", lines: "M0 2.5h5" };

function Patterns({ id }) {
  return html`<defs>${Object.entries(PATTERNS).map(([name, path]) => html`<pattern key=${name} id="${id}-${name}" width="5"
    height="5" patternUnits="userSpaceOnUse"><path class="pattern" d=${path} /></pattern>`)}</defs>`;
}

function drawLines({ data, x, y }) {
  const middle = (i) => x(data.start + (i + 0.5) * data.stepMs);
  const path = (values) => {
    let text = "";
    for (const [i, value] of values.entries()) {
      if (value === null) continue;
      const isAlone = (values[i - 1] ?? null) === null;
      text += `${isAlone ? "M" : "L"}${middle(i).toFixed(1)} ${y(value).toFixed(1)}`;
      if (isAlone && (values[i + 1] ?? null) === null) text += "m-2 0h4";
    }
    return text;
  };
  return data.series.map(({ label, values, className, dash }) => html`<path key=${label}
    class="line ${className} ${dash ? `dash-${dash}` : ""}" d=${path(values)} />`);
}

/** The names of the marks, and the values at the cursor, or else the last ones. */
function Legend({ data, shown, format, limit, idle, how }) {
  const isRead = idle || shown !== null;
  return html`<figcaption class="legend">
    ${data.series.map(({ label, className, dash, pattern, values }) => html`<span class="legend-item" key=${label}>
      <${Swatch} ...${{ className, dash, pattern }} />${label}${isRead && html`<b>${valueText(values, shown, format)}</b>`}</span>`)}
    ${limit && html`<span class="legend-item"><svg class="swatch" viewBox="0 0 16 10" aria-hidden="true"><path class="limit"
      d="M0 5h16" /></svg>${limit.label}</span>`}
    <span class="legend-time">${shown === null ? binText(data, how) : binName(data, shown)}</span>
  </figcaption>`;
}

/** What a mark is of its slots; of a single slot only a sum needs words. */
function binText({ factor, stepMs }, how) {
  return factor > 1 || how === "sum" ? words.chart.each[how](duration(stepMs / 1000)) : "";
}

function valueText(values, at, format) {
  const value = at === null ? values.findLast((one) => one !== null) : values[at];
  return value === null || value === undefined ? words.chart.none : format(value);
}

function binName({ start, stepMs, bins }, at) {
  const day = bins * stepMs > 86_400_000 * 1.5;
  const begin = start + at * stepMs;
  return `${clock(begin, { day, seconds: stepMs < 60_000 })} – ${clock(begin + stepMs, { seconds: stepMs < 60_000 })}`;
}

function reading(data, at, format) {
  const values = data.series.map(({ label, values }) => `${label} ${valueText(values, at, format)}`);
  return `${binName(data, at)}: ${values.join(", ")}`;
}

function summary(title, { series }, format) {
  const parts = series.map(({ label, values }) => {
    const known = values.filter((value) => value !== null);
    return known.length ? words.chart.part(label, format(known.at(-1)), format(Math.max(...known))) : `${label} ${words.chart.none}`;
  });
  return words.chart.summary(title, parts.join("; "));
}

function Swatch({ className, dash, pattern }) {
  const id = useId();
  const isLine = dash !== undefined;
  return html`<svg class="swatch ${className}" viewBox=${isLine ? "0 0 16 10" : "0 0 10 10"} aria-hidden="true">
    ${isLine ? html`<path class="line ${className} dash-${dash}" d="M0 5h16" />` : html`<rect class="bar" width="10" height="10" rx="2" />
      ${pattern && html`<${Patterns} id=${id} /><rect width="10" height="10" fill="url(#${id}-${pattern})" />`}`}
  </svg>`;
}

/** The values as a table, made when it is opened. */
function DataTable({ title, data, format }) {
  const [isOpen, setOpen] = useState(false);
  const rows = isOpen ? Array.from({ length: data.bins }, (_, i) => i) : [];
  return html`<details class="chart-data" onToggle=${(event) => setOpen(event.target.open)}><summary>${words.chart.table}</summary>
    ${isOpen && html`<div class="table-scroll chart-rows" role="region" tabindex="0" aria-label=${title}><table class="table">
      <thead><tr><th scope="col">${words.chart.time}</th>${data.series.map(({ label }) => html`<th scope="col" key=${label}
        class="cell-end">${label}</th>`)}</tr></thead>
      <tbody>${rows.map((i) => html`<tr key=${i}><th scope="row">${binName(data, i)}</th>${data.series.map(({ label, values }) => html`
        <td class="cell-end" key=${label}>${valueText(values, i, format)}</td>`)}</tr>`)}</tbody></table></div>`}
  </details>`;
}

/** Bars without axes, for a cell of a table. `top` is what fills the height; `label` says it in words. */
export function Sparkbars({ values, label, className = "c-waiting", top, bars = 36 }) {
  const size = Math.ceil(values.length / bars);
  const sums = [];
  for (let i = 0; i < values.length; i += size) sums.push(values.slice(i, i + size).reduce((sum, n) => sum + (n ?? 0), 0));
  const most = Math.max(1, top ?? 0, ...sums);
  return html`<svg class="sparkbars ${className}" viewBox="0 0 ${sums.length * 4} 24" preserveAspectRatio="none" role="img"
    aria-label=${label}><title>${label}</title><path class="spark-base" d="M0 23.5h${sums.length * 4}" />
    ${sums.map((n, i) => n > 0 && html`<rect key=${i} class="bar" x=${i * 4} width="3" y=${24 - Math.max(1.5, (n / most) * 24)}
      height=${Math.max(1.5, (n / most) * 24)} />`)}</svg>`;
}
