// Texts for people that more than one page shows. Each page has its own below words/.

export const number = (n) => n.toLocaleString("en");
export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

export const words = {
  name: "later",
  title: (page) => (page ? `${page} · later` : "later"),
  skip: "Skip to the content",
  nav: {
    label: "Pages", overview: "Overview", topics: "Topics", tasks: "Tasks", dead: "Dead", workers: "Workers",
    schedules: "Schedules", jobs: "Jobs", api: "API", menu: "Menu",
    signOut: "Sign out", signedIn: (key) => `Signed in with the key ${key}`,
  },
  search: {
    label: "Search by id or topic",
    placeholder: "Id or topic",
    searching: "Searching…",
    nothing: (text) => `No task and no topic is called “${text}”. It may have been delivered or deleted.`,
    anyTask: "Look at that id",
    anyTopic: "Look at that topic",
    hint: "An id or a whole name of a topic. Contents and tags are not indexed.",
  },
  theme: {
    label: (name) => `Theme: ${name}`, system: "as the system", light: "light", dark: "dark",
  },
  live: {
    on: "Live", off: "Stopped", stop: "Stop live updates", go: "Go live",
    age: (text) => `${text} old`, stopped: "Live updates are off", started: "Live updates are on",
  },
  utc: { on: "Times are in UTC", off: "Times are relative" },
  banner: {
    unreachable: "later does not answer.",
    storeAway: "The store is away. Nothing is delivered until it is back.",
    signedOut: "You are signed out.",
    signIn: "Sign in again",
    retry: "Try now",
    back: "later answers again.",
    storeBack: "The store is back.",
    updated: (from, to) => `later was updated from ${from} to ${to}.`,
    reload: "Load the new console",
    readOnly: "Read-only",
    since: (text) => `For ${text}.`,
  },
  keys: {
    title: "Keys", key: "Key", does: "Does", close: "Close", open: "Keys",
    search: "Search", refresh: "Ask for everything again", live: "Stop or start live updates",
    list: "Show this list", utc: "Show times in UTC or relative",
    goTo: (page) => `Go to ${page}`,
    next: "Next row", previous: "Previous row", select: "Select the row", enter: "Open the row",
  },
  me: {
    unknown: "What you may do is not known yet.",
    readOnly: "This console is read-only.",
    lacks: (scope) => `Your key lacks the scope “${scope}”.`,
  },
  notFound: {
    title: "No such page", text: "This address shows nothing. The link may be cut off, or come from another version.",
    home: "Go to the overview",
  },
  failure: {
    title: "This page failed",
    text: "That is a fault of the console's own. The tasks are not touched by it.",
    again: "Try again", noModule: "The page could not be loaded.",
  },
  loading: "Loading…",
  pager: { label: "Pages of the list", first: "First page", next: "Next page" },
  noAnswer: (isLate) => (isLate ? "later did not answer in time." : "later does not answer."),
  status: (status) => `later answered ${status} without a reason.`,
  copy: { copy: "Copy", copied: "Copied", label: (name) => `Copy ${name}`, failed: "Copying failed" },
  table: { selectAll: "Select all", select: (name) => `Select ${name}`, sortBy: (name) => `Sort by ${name}` },
  dialog: {
    cancel: "Cancel", close: "Close", working: "Working…",
    typeName: "To confirm, type ",
    more: (n) => `and ${n} more`,
  },
  levelNames: { ok: "Good", warn: "Warning", bad: "Problem", info: "Note" },
  chart: {
    table: "As a table", time: "Time", none: "no data", noData: "Nothing was recorded in this time.", nothing: "Nothing falls due in this time.",
    each: { sum: (step) => `per ${step}`, max: (step) => `highest of ${step}`, rate: (step) => `mean of ${step}` },
    summary: (title, parts) => `${title}: ${parts}. Use the arrow keys to read single values.`,
    part: (name, last, top) => `${name} now ${last}, at most ${top}`,
  },
  time: { now: "now", ago: (text) => `${text} ago`, ahead: (text) => `in ${text}` },
};
