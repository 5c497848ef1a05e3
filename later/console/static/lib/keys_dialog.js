// The list of keys that act on the present page.

import { html } from "./html.js";
import { Dialog } from "./dialog.js";
import { shortcuts } from "./keyboard.js";
import { useObservable } from "./observable.js";
import { words } from "./words.js";

export function KeysDialog({ onClose }) {
  const shown = new Map();
  for (const { key, help } of useObservable(shortcuts)) if (help) shown.set(key, help);
  if (document.querySelector("main tbody a")) shown.set("Enter", words.keys.enter);
  return html`<${Dialog} title=${words.keys.title} onClose=${onClose}>
    <table class="keys"><thead class="visually-hidden"><tr><th scope="col">${words.keys.key}</th>
      <th scope="col">${words.keys.does}</th></tr></thead>
    <tbody>${[...shown].map(([key, help]) => html`<tr key=${key}><td>${key.split(" ").map((part) => html`<kbd>${part}</kbd> `)}</td>
      <td>${help}</td></tr>`)}</tbody></table>
    <div class="dialog-actions"><button class="button" onClick=${onClose} data-focus="">${words.keys.close}</button></div>
  <//>`;
}
