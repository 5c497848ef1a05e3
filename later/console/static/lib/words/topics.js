// Texts about topics: the list, and badges that other pages show, too.

import { number, plural } from "../words.js";

export const topicWords = {
  title: "Topics",
  columns: {
    topic: "Topic", due: "Due", lateness: "Oldest lateness", delay: "Waiting", unack: "In flight", error: "Retrying",
    dead: "Dead", held: "Held or limited by", next: "Next 6 h",
  },
  held: {
    rate: (rate) => (rate ? `rate ${rate}/s` : "its rate"),
    concurrency: (n) => (n ? `concurrency ${n}` : "its concurrency"),
    pause: "paused", receiver: "its receiver", pull: "pulled",
  },
  limits: { rate: (rate) => `${rate}/s`, concurrency: (n) => `${n} at once` },
  heldTitle: {
    rate: "The topic's rate lets no more through.", concurrency: "As many deliveries as allowed are in flight.",
    pause: "The topic is paused: nothing is delivered, and tasks are still accepted.",
    receiver: "The receiver asked for a pause.", pull: "Consumers claim these tasks; later calls nobody.",
  },
  next: (n, most, at) => (n ? `${n} fall due, most at ${at} (${most})` : "nothing falls due"),
  namespace: "Namespace", allNamespaces: "All namespaces", filter: "Filter this page",
  shown: (n, all, isPart) => `${n === all ? "" : `${n} of `}${isPart ? "the first " : ""}${plural(all, "topic")}`,
  most: (n) => `The first ${n} by this order. Sorted by name, all topics can be paged through.`,
  counted: "Counted",
  history: "What happened", range: "Range", historyOff: "This daemon keeps no history (--history off).",
  chosen: (n) => `${n} selected`, pause: "Pause", resume: "Resume", clear: "Clear the selection",
  pauseTitle: (n) => (n === 1 ? "Pause this topic?" : `Pause ${number(n)} topics?`),
  resumeTitle: (n) => (n === 1 ? "Resume this topic?" : `Resume ${number(n)} topics?`),
  pauseText: "Nothing more is delivered. What is in flight ends, and tasks are still accepted.",
  resumeText: "Deliveries go on at once, slowly at first where the policy has a ramp.",
  done: { pause: (n) => `${n} paused`, resume: (n) => `${n} resumed` },
  failed: (n) => `, ${n} failed and still selected`, noneLeft: "None of them is shown any more.",
  none: "No topics", noneText: "A topic is there as soon as it has a task or a policy: `later create` makes a task.",
  noneFiltered: "No topic on this page matches.",
};
