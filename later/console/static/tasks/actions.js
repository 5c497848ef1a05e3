// What can be done with one task.

import { post, serverNow } from "../lib/api.js";
import { ButtonWithReason, ErrorNotice } from "../lib/components.js";
import { ConfirmDialog } from "../lib/dialog.js";
import { html, useRef, useState } from "../lib/html.js";
import { navigate, taskPath } from "../lib/router.js";
import { taskWords as words } from "../lib/words/tasks.js";
import { TaskForm } from "./form.js";

/** Draw the buttons of a task. `told(text, ended)` is called with what was done. */
export function TaskActions({ task, me, told }) {
  const [open, setOpen] = useState(null);
  const [error, setError] = useState(null);
  const isBusy = useRef(false);
  const close = () => setOpen(null);
  const { id, state } = task;
  const cannotEdit = me.whyNot("edit");
  const whileFlying = state === "unack" ? words.inFlightNow : "";
  const act = (path, text) => async () => {
    if (isBusy.current) return;
    isBusy.current = true;
    setError(null);
    try {
      await post(path, { id });
      told(text);
    } catch (failure) {
      setError(failure);
    }
    isBusy.current = false;
  };
  const save = async (body) => {
    const answer = await post("/update", body);
    close();
    told(body.callback === null && answer.callback ? words.savedButCallback : words.saved);
  };
  const create = async (body) => {
    const created = await post("/create", body);
    if (created.created === false) throw Object.assign(new Error(words.exists(created.id)), { field: "id" });
    close();
    told(words.copied);
    navigate(taskPath(created.id));
  };
  const remove = async () => {
    const answer = await post("/delete", { id });
    told(answer.ended ? words.deletedEnded : answer.in_flight ? words.deletedInFlight : words.deleted, true);
  };
  const canRedrive = state === "dead" || task.dead_letter;
  return html`
    ${state !== "dead" && html`<${ButtonWithReason} className=${canRedrive ? "" : "button-primary"}
      reason=${cannotEdit || whileFlying} onClick=${act("/run-now", words.ranNow)}>${words.runNow}<//>`}
    ${canRedrive && html`<${ButtonWithReason} className="button-primary" reason=${cannotEdit || whileFlying}
      onClick=${act("/redrive", words.redriven)}>${words.redrive}<//>`}
    <${ButtonWithReason} reason=${cannotEdit || whileFlying || (state === "dead" ? words.deadIsNotEdited : "")}
      onClick=${() => setOpen("edit")}>${words.edit}<//>
    <${ButtonWithReason} reason=${me.whyNot("create")} onClick=${() => setOpen("copy")}>${words.copyAsNew}<//>
    <${ButtonWithReason} className="button-remove" reason=${cannotEdit} onClick=${() => setOpen("delete")}>${words.delete}<//>
    ${error && html`<${ErrorNotice} error=${error}>${error.type === "in-flight" && words.form.inFlight}<//>`}
    ${open === "delete" && html`<${ConfirmDialog} title=${words.deleteTitle} count=${1} sample=${[id]}
      confirmLabel=${words.delete} danger onConfirm=${remove} onClose=${close}>
      <p>${state === "unack" ? words.deleteInFlightNote : words.deleteNote}</p><//>`}
    ${(open === "edit" || open === "copy") && html`<${TaskForm} task=${task} isEdit=${open === "edit"} now=${serverNow()}
      onSend=${open === "edit" ? save : create} onClose=${close} />`}`;
}
