// Data that is asked for again and again: only while the page is seen, at once on return, less often after errors.

import { useCallback, useEffect, useRef, useState } from "./html.js";
import { Observable } from "./observable.js";
import { isLive } from "./settings.js";

const LONGEST_MS = 30_000;
const NOTHING_YET = { data: undefined, error: null, loading: true };
const polls = new Set();

/** The time (of `performance.now()`) of the oldest picture that a view shows; null before the first. */
export const pictureAt = new Observable(null);

function updatePictureAt() {
  const fastest = [...polls].filter((poll) => poll.everyMs).sort((a, b) => a.everyMs - b.everyMs)[0];
  pictureAt.value = (fastest ?? [...polls][0])?.okAt ?? null;
}

/** Ask for everything on the page again. */
export function refreshAll() {
  for (const poll of [...polls]) poll.refresh();
}

/** Call `load({signal})` now, and every `everyMs` while the page is seen and live; 0: only now and on refresh.
 *
 * Returns `{data, error, refresh, loading}`. Data stays while a later call fails, and goes when `deps` change.
 */
export function usePoll(load, everyMs, deps = []) {
  const [state, setState] = useState(NOTHING_YET);
  const latest = useRef(load);
  latest.current = load;
  const poll = useRef(null);
  useEffect(() => {
    setState(NOTHING_YET);
    poll.current = new Poll((options) => latest.current(options), everyMs, (change) => {
      setState((before) => ({ ...before, ...change }));
    });
    return () => poll.current.stop();
  }, [everyMs, ...deps]);
  const refresh = useCallback(() => poll.current?.refresh(), []);
  return { ...state, refresh };
}

class Poll {
  okAt = null;
  #errors = 0;
  #timer = 0;
  #abort = null;
  #ends = [];

  constructor(load, everyMs, tell) {
    Object.assign(this, { load, everyMs, tell });
    polls.add(this);
    const wake = () => this.#wake();
    document.addEventListener("visibilitychange", wake);
    this.#ends = [isLive.watch(wake), () => document.removeEventListener("visibilitychange", wake)];
    this.refresh();
  }

  stop() {
    polls.delete(this);
    clearTimeout(this.#timer);
    this.#abort?.abort();
    for (const end of this.#ends) end();
    updatePictureAt();
  }

  /** Ask now. What was asked before and has not come is given up. */
  async refresh() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    const abort = new AbortController();
    this.#abort = abort;
    this.tell({ loading: true });
    try {
      const data = await this.load({ signal: abort.signal });
      if (abort.signal.aborted) return;
      this.#errors = 0;
      this.okAt = performance.now();
      this.tell({ data, error: null, loading: false });
      updatePictureAt();
    } catch (error) {
      if (abort.signal.aborted) return;
      this.#errors += 1;
      this.tell({ error, loading: false });
    }
    this.#abort = null;
    this.#plan();
  }

  #plan() {
    const isSeen = document.visibilityState === "visible";
    if (!polls.has(this) || !this.everyMs || !isSeen || !isLive.value) return;
    const longest = Math.max(LONGEST_MS, this.everyMs);
    const delay = Math.min(this.everyMs * 2 ** Math.min(this.#errors, 10), longest);
    this.#timer = setTimeout(() => this.refresh(), delay);
  }

  /** Go on where the page is seen again or becomes live; else rest. */
  #wake() {
    clearTimeout(this.#timer);
    const isSeen = document.visibilityState === "visible";
    if (this.everyMs && isSeen && isLive.value) {
      if (!this.#abort) this.refresh();
    } else if (this.#abort && this.okAt !== null && !isSeen) {
      this.#abort.abort();
      this.#abort = null;
      this.tell({ loading: false });
    }
  }
}
