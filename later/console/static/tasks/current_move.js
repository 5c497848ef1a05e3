// The redrive or purge that runs or has ended.

import { Observable } from "../lib/observable.js";

/** `{action, scope, rate, total, moved, state, error, stop}`; null before the first. */
export const currentMove = new Observable(null);
