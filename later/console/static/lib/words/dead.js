// Texts of the page of dead tasks.

import { number, plural } from "../words.js";

export const deadWords = {
  page: "Dead tasks",
  titleOf: (topic) => `Dead tasks of ${topic}`,
  none: "No task is dead",
  noneText: "Tasks that were given up are kept here, so that somebody can find out why.",
  foot: "A task is dead when later has given it up. It is kept as long as its topic's `dead_keep` says (30 days by default), " +
    "and can be redriven until then.",
  recent: "Died in the last 24 hours, by reason",
  byTopic: "By topic",
  topic: "Topic", dead: "Dead", reason: "Reason",
  news: (n) => `${number(n)} more`,
  acknowledge: "Acknowledge",
  acknowledgeTopic: (topic) => `Acknowledge the dead tasks of ${topic}`,
  acknowledgeAll: "Acknowledge all",
  acknowledgeHint: "This browser then marks a number only when it has grown.",
  acknowledged: "acknowledged",
  meanings: {
    exhausted: "all its retries have failed", gone: "its receiver wants no further attempt (410)",
    expired: "its time to live ended first", rejected: "its consumer gave it up", lost: "its workers went away too often",
    busy: "its receiver was busy for too long", address: "the guard forbids its callback",
    "no callback": "neither it nor its topic has a callback", body: "the stored task cannot be read",
  },
  all: "All",
  countReasons: "Count by reason",
  countHint: "It reads why each of them died.",
  deadTo: "Tasks that die in this topic move to its dead-letter topic:",

  open: { redrive: "Redrive…", purge: "Purge…" },
  verb: { redrive: "Redrive", purge: "Purge" },
  ask: {
    redrive: (n, isOne) => `Redrive ${n} dead ${isOne ? "task" : "tasks"}?`,
    purge: (n, isOne) => `Purge ${n} dead ${isOne ? "task" : "tasks"}?`,
  },
  atLeast: "at least ",
  scope: ({ topic, states, reason, died_after: after, died_before: before }) => [
    `topic ${topic}`, states && states.join(" and "), reason && `reason ${reason}`, after && `died after ${after}`, before && `died before ${before}`,
  ].filter(Boolean).join(", "),
  purgeNote: "They are removed for good. Nobody is called.",
  rate: "Tasks a second",
  noRate: "no limit",
  rateOfTopic: "As the topic's rate says. Empty: all are due at once, and the topic's own rate applies.",
  rateHint: "Empty: all are due at once. A receiver that failed may want it slower.",
  takes: (time) => `It takes ${time}. Keep this window open; what is not sent yet stays dead if you stop.`,
  takesNoTime: "They are due as soon as they are moved, with all their retries.",
  wrongRate: "The rate is a number of at least 0.0001.",
  counting: "Counting…",
  nothing: "No dead task is left that this is about.",
  oneAtATime: "Another one is running. Stop it first.",
  doing: { redrive: "Redriving", purge: "Purging" },
  progress: (moved, total) => `${moved} of ${total}.`,
  left: (time) => `${time} left.`,
  keepOpen: "Keep this window open.",
  stop: "Stop",
  close: "Close",
  ended: ({ action, state, moved, error }) => {
    const done = `${plural(moved, "task")} ${action === "redrive" ? "redriven" : "purged"}`;
    const isUnsure = state === "failed" && (error.status === 0 || error.status >= 500); // its last call may have moved some
    return {
      done: `${done}.`, stopped: `Stopped: ${done}, the rest stays as it is.`,
      failed: `It failed after ${isUnsure ? "at least " : ""}${done}.`,
    }[state];
  },
};
