// Questions before what cannot be undone. No button acts by default, and the focus returns to where it was.

import { html, useEffect, useId, useLayoutEffect, useRef, useState } from "./html.js";
import { ErrorNotice } from "./components.js";
import { keepFocus } from "./focus.js";
import { words } from "./words.js";

/** A modal dialog. `onClose` is also called for Escape. */
export function Dialog({ title, onClose, children, className = "" }) {
  const id = useId();
  const dialog = useRef(null);
  useLayoutEffect(() => {
    const giveBack = keepFocus();
    const shown = dialog.current;
    shown.showModal();
    shown.querySelector("[data-focus]")?.focus();
    return () => {
      shown.close(); // while it is open, nothing beside it takes the focus
      giveBack();
    };
  }, []);
  const cancel = (event) => {
    event.preventDefault();
    onClose();
  };
  return html`<dialog ref=${dialog} class="dialog ${className}" aria-labelledby=${id} onCancel=${cancel}>
    <h2 id=${id} class="dialog-title" dir="auto">${title}</h2>${children}
  </dialog>`;
}

/** A question before an action.
 *
 * `sample` are the first names of what it is about, `count` how many there are; with `typeToConfirm` that name must be
 * typed. `onConfirm` may return a promise: the dialog stays until then, shows its error, and closes if there is none.
 */
export function ConfirmDialog({
  title, children, count = 0, sample = [], typeToConfirm, confirmLabel, reason, danger, onConfirm, onClose,
}) {
  const [typed, setTyped] = useState("");
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const isShown = useRef(true);
  useEffect(() => () => { isShown.current = false; }, []);
  const isOff = Boolean(reason) || isBusy || (typeToConfirm !== undefined && typed !== typeToConfirm);
  const confirm = async () => {
    if (isOff) return;
    setBusy(true);
    setError(null);
    try {
      await onConfirm();
      if (isShown.current) onClose();
    } catch (failure) {
      if (isShown.current) setError(failure);
    }
    if (isShown.current) setBusy(false);
  };
  const close = () => { if (!isBusy) onClose(); }; // else nobody would be told how it ended
  const rest = count - sample.length;
  return html`<${Dialog} title=${title} onClose=${close}>
    <div class="dialog-body">
      ${children}
      ${sample.length > 0 && html`<ul class="sample">${sample.map((name) => html`<li key=${name}><bdi>${name}</bdi></li>`)}
        ${rest > 0 && html`<li class="muted">${words.dialog.more(rest.toLocaleString("en"))}</li>`}</ul>`}
      ${typeToConfirm !== undefined && html`<${TypeName} name=${typeToConfirm} typed=${typed} onInput=${setTyped} />`}
      <${ErrorNotice} error=${error} />
      ${reason && html`<p class="muted">${reason}</p>`}
    </div>
    <div class="dialog-actions">
      <button type="button" class="button" onClick=${close} data-focus=${typeToConfirm === undefined ? "" : undefined}
        aria-disabled=${isBusy ? "true" : undefined}>${words.dialog.cancel}</button>
      <button type="button" class="button ${danger ? "button-danger" : "button-primary"}" onClick=${confirm}
        aria-disabled=${isOff ? "true" : undefined}>${isBusy ? words.dialog.working : confirmLabel}</button>
    </div>
  <//>`;
}

function TypeName({ name, typed, onInput }) {
  const id = useId();
  return html`<div class="field"><label for=${id} class="type-name">${words.dialog.typeName}<bdi
    class="code">${name}</bdi></label>
    <input id=${id} class="input" value=${typed} onInput=${(event) => onInput(event.target.value)} data-focus=""
      autocomplete="off" dir="auto" /></div>`;
}
