// A value that components watch.

import { useEffect, useState } from "./html.js";

export class Observable {
  #value;
  #watchers = new Set();

  constructor(value) {
    this.#value = value;
  }

  get value() {
    return this.#value;
  }

  set value(value) {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const watcher of [...this.#watchers]) watcher(value);
  }

  /** Call `watcher` with each new value, until the function that this returns is called. */
  watch(watcher) {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }
}

/** Return the value of an observable; the component is drawn again when it changes. */
export function useObservable(observable) {
  const [, redraw] = useState(0);
  useEffect(() => {
    const seen = observable.value;
    const stop = observable.watch(() => redraw((n) => n + 1));
    if (!Object.is(seen, observable.value)) redraw((n) => n + 1);
    return stop;
  }, [observable]);
  return observable.value;
}
