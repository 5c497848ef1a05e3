// The fields of a policy: how each is written, shown and read.

import { topicWords as words, zeroWords } from "./words/topic.js";

/** Fields by group: name → kind, or the values of a choice. */
export const FIELD_GROUPS = {
  limits: { rate: "number", concurrency: "number", paused: "switch", ramp: "duration" },
  delivery: {
    deliver: ["push", "pull"], callback: "text", timeout: "duration", ack: ["auto", "code", "status"],
    sign: ["off", "namespace", "topic", "origin"], claim_lease: "duration", max_claims: "number",
  },
  retry: { retry: "number", retry_base: "duration", retry_cap: "duration", retry_jitter: "number" },
  when: {
    default_delay: "duration", max_delay: "duration", delay_mode: ["honor", "queue"], delays: "switch", ttl: "duration",
    durability: ["primary", "disk", "replica", "replica-disk"],
  },
  end: {
    dead_keep: "duration", dead_to: "text", dead_ttl: "duration", remember: "duration", on_dead: "text", on_done: "text",
  },
};
export const FIELD_KINDS = Object.assign({}, ...Object.values(FIELD_GROUPS));

const UNITS = { ms: 0.001, s: 1, m: 60, min: 60, h: 3600, d: 86_400 };

/** Return a field's value for people, with all its digits. */
export function showValue(name, value) {
  const kind = FIELD_KINDS[name];
  if (value === 0 && zeroWords[name]) return zeroWords[name];
  if (value === null || value === "") return words.none;
  if (kind === "switch") return value ? words.on : words.off;
  if (typeof value === "number" && kind === "number") return value.toLocaleString("en", { maximumFractionDigits: 6 });
  return typeof value === "number" ? writeValue(kind, value) : String(value);
}

/** Return a value as it is typed: durations in their largest whole unit. */
export function writeValue(kind, value) {
  if (value === null) return "";
  if (kind === "switch") return value ? "on" : "off";
  if (kind !== "duration" || value === 0) return String(value);
  const unit = ["d", "h", "m"].find((name) => value % UNITS[name] === 0);
  return unit ? `${value / UNITS[unit]}${unit}` : `${value}s`;
}

/** Return what was typed as a value for the API, which refuses what makes no sense. */
export function readValue(kind, text) {
  const typed = text.trim();
  if (kind === "switch") return typed === "on";
  if (kind === "text" || Array.isArray(kind)) return typed;
  const found = typed.match(/^(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)?$/);
  if (!found || (kind === "number" && found[2])) return typed;
  return Number(found[1]) * (kind === "duration" ? UNITS[found[2] ?? "s"] : 1);
}
