// Texts of the pages of workers, jobs and schedules, and of the sign-in.

import { plural } from "../words.js";

export const fleetWords = {
  workers: {
    page: "Workers", instances: "Instances", none: "No instance has reported",
    noneText: "Nothing is delivered while no worker runs: start one with `later up` or `later worker`.",
    deliver: (n, all) => `${plural(n, "instance delivers", "instances deliver")}${n === all ? "" : `, ${all} in all`}`,
    nobody: "No worker is alive: nothing is delivered",
    gone: (n) => `${plural(n, "instance has", "instances have")} not reported for a while.`,
    mixed: (versions) => `They run different versions: ${versions.join(", ")}.`,
    clocks: (n) => `The ${n === 1 ? "clock of one instance is" : `clocks of ${n} instances are`} off by more than a second.`,
    fine: "All clocks agree, and all run the same version.",
    name: "Instance", role: "Role", slots: "Slots in use", version: "Version", processes: "Processes", since: "Runs for",
    heartbeat: "Last heartbeat", clock: "Clock", differs: "differs", notAlive: "silent",
    ofSlots: (used, all) => `${used} of ${all}`, noSlots: "delivers nothing",
    notAllowed: "Workers deliver for all namespaces, so a key that is bound to one does not see them.",
  },
  jobs: {
    page: "Jobs", titleOf: (id) => `Job ${id}`, one: "Job", none: "No job",
    noneText: "A bulk job creates tasks from files and tables: start one with `later bulk`, or from Spark.",
    job: "Job", created: "Created", existing: "Already there", refused: "Refused", forgotten: "Forgotten",
    createdNote: "tasks that it made", existingNote: "ids that were there before",
    refusedNote: "rows that break a rule", allRuns: "All runs", runLabel: "Only this run", show: "Show",
    cancel: "To cancel it",
    cancelNote: "A job is cancelled where its input is: this deletes those of its tasks that are still pending.",
    missing: "No such job", missingText: "Nothing is counted under this name. Counts are forgotten some time after a job.",
  },
  schedules: {
    page: "Schedules", none: "No schedule",
    noneText: "A schedule creates a task each time that it fires: put one with `later schedules put`.",
    id: "Schedule", topic: "Topic", fires: "Fires", next: "Next", last: "Last", state: "State",
    every: (time) => `every ${time}`, paused: "paused", active: "active", failed: "last one refused",
    pause: "Pause", resume: "Resume", runNow: "Run now", delete: "Delete",
    did: { pause: (id) => `${id} is paused.`, resume: (id) => `${id} fires again.`, delete: (id) => `${id} is deleted.` },
    ran: "It has created the task", never: "never",
    deleteTitle: "Delete this schedule?", deleteNote: "It fires no more. The tasks that it has created stay.",
  },
  signIn: {
    page: "Sign in", text: "The console sees and does what your key may.",
    key: "Key", hint: "It begins with later_. It is exchanged for a cookie, and not kept.",
    submit: "Sign in", working: "Signing in…", done: "You are signed in.",
    wrong: "This key is not known here, or was removed.",
    notKept: "The browser keeps no session: open the console by https.",
    help: "Make a key with `later keys create`.",
  },
};
