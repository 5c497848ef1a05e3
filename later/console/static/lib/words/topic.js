// Texts of the page of a topic.

export const topicWords = {
  pause: "Pause", resume: "Resume", purge: "Purge…", tasks: "Tasks",
  figures: "Tasks by state",
  due: "Due", oldest: "Oldest lateness", delay: "Waiting", unack: "In flight", error: "Retrying", dead: "Dead",
  next: (text) => `next ${text}`, noneWaits: "none waits",
  ranges: [["6h", "6 h"], ["24h", "24 h"]],
  deliveries: "Deliveries", deliveriesNote: "per second, by outcome", dueTasks: "Due tasks", dueTasksNote: "the most in each 5 min",
  outcomes: { done: "done", busy: "busy", failed: "failed" }, dueSeries: "due",
  forecast: "What falls due", forecastSeries: "tasks", forecastSum: (n, due) => `${n} in the next 6 h; ${due} already due`,
  limit: (rate) => `the most at ${rate}/s`,
  noRate: "No rate limits this topic: each task is delivered when it is due, as far as slots and receiver allow.",
  heldByPause: "The topic is paused: nothing is delivered. Try a rate to see how it would go on.",
  atRate: (rate, text) => `At ${rate}/s, ${text}`,
  keepsUp: "deliveries keep up with everything that falls due in the next 6 h.",
  wave: (at, n, text) => `the wave of ${at} (${n} tasks) takes ${text}.`,
  backlog: (n, text) => `the ${n} tasks that are due already take ${text}.`,
  behind: (at, worst) => `tasks due from ${at} on wait, up to ${worst}.`,
  caughtUp: (at) => `Caught up at ${at}.`,
  notCaughtUp: "Not caught up within 6 h.",
  tryRate: "Try another rate", tryHint: "Per second; 0: no limit. Nothing is changed.",
  policy: "Policy", policyNote: "each value, and the level that sets it", edit: "Edit", cancel: "Cancel",
  field: "Field", value: "Value", level: "Set by", here: (name) => `Set ${name} here`, inherits: (value, level) => `inherits ${value} (${level})`,
  save: (n) => (n ? `Review ${n} change${n === 1 ? "" : "s"}…` : "No changes"),
  saveTitle: (n) => (n === 1 ? "Make this change?" : `Make ${n} changes?`), saveLabel: "Save", inherit: "inherit",
  saved: "The policy is changed. Every process obeys it within two seconds.",
  now: "Now", then: "Then",
  groups: { when: "When tasks are due", delivery: "Deliveries", retry: "Retries", limits: "Limits", end: "When tasks end" },
  none: "none", on: "on", off: "off",
  paused: "Paused", resumed: "Resumed",
  purgeTitle: "Remove tasks for good?", counting: "Counting…",
  purgeText: "What is in flight, what dies from now on, and the policy stay. What arrives meanwhile may go instead of another.", states: "States to remove",
  purgeLabel: (n) => `Remove ${n}`, nothing: "There is nothing to remove.",
};

/** What 0 means, where it is more than the number. */
export const zeroWords = {
  max_delay: "no limit", ttl: "no limit", rate: "no limit", concurrency: "no limit", ramp: "at once", dead_ttl: "none",
  remember: "not at all",
};

/** What each field means; lengths are written 15, 15s, 10m, 2h or 7d. */
export const fieldWords = {
  default_delay: "Delay of a task that names none", max_delay: "Longest delay of a task; 0: no limit",
  delay_mode: "honor: a task's own delay counts; queue: not", delays: "off: refuse tasks not due at once",
  ttl: "Age at which a task expires; 0: none", timeout: "Deadline of a delivery, 1s to 120s",
  retry: "Retries after the first attempt", retry_base: "Pause after the first failure; it doubles", retry_cap: "Longest pause",
  retry_jitter: "Random share of a pause, added to it, 0 to 1", ack: "How a receiver confirms",
  rate: "Deliveries per second, of all instances; 0: no limit",
  concurrency: "Deliveries in flight, of all instances; 0: no limit", paused: "on: nothing is delivered",
  ramp: "Time back to full speed after a pause; 0: at once", dead_keep: "How long dead tasks are kept",
  sign: "What has its own signing secret", deliver: "push: later calls; pull: consumers claim",
  callback: "URL for tasks without one", claim_lease: "Longest hold of a claimed task, 1s to 12h",
  max_claims: "Claims after which a task is dead; 0: 16 lost leases", dead_to: "Topic to which dead tasks move",
  dead_ttl: "Its ttl there; 0: none", remember: "How long a chosen id is remembered; 0: not at all",
  on_dead: "Topic that is told of a death, by a task", on_done: "Topic that is told of a delivery, by a task",
  durability: "Where a write is before it is acknowledged",
};
