// Schemas of the API's description, as a person reads them: types in words, constraints, tables of fields.

import { count } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { referenceWords as words } from "../lib/words/reference.js";

/** Return what a reference such as `#/components/schemas/Task` stands for, and its name. */
export function resolve(schema, root) {
  if (!schema?.$ref) return { schema: schema ?? {}, name: null };
  const path = schema.$ref.slice(2).split("/");
  return { schema: path.reduce((part, key) => part?.[key], root) ?? {}, name: path.at(-1) };
}

/** Return the schemas that one stands for: those of `anyOf` and `oneOf`, without `null`, at any depth. */
function choices(schema) {
  const some = schema.anyOf ?? (schema.properties ? null : schema.oneOf);
  return some ? some.flatMap((part) => choices(part)) : schema.type === "null" ? [] : [schema];
}

const takesNull = (schema) => [schema.type].flat().includes("null")
  || [...(schema.anyOf ?? []), ...(schema.oneOf ?? [])].some((part) => takesNull(part));

/** Return the type of a schema in words: `array of TaskView`, `string or null`. */
export function typeOf(schema, root) {
  const parts = choices(schema).map((part) => {
    const { schema: found, name } = resolve(part, root);
    if (name) return name;
    if (found.enum) return found.enum.map((value) => JSON.stringify(value)).join(` ${words.or} `);
    if (found.const !== undefined) return JSON.stringify(found.const);
    const types = [found.type ?? "any"].flat().filter((type) => type !== "null");
    return types.map((type) => {
      if (type === "array") return found.items ? `array of ${typeOf(found.items, root)}` : "array";
      const values = found.additionalProperties;
      if (type === "object" && values && typeof values === "object") return `object of ${typeOf(values, root)}`;
      return found.format ? `${type} (${found.format})` : type;
    }).join(` ${words.or} `);
  });
  return [...new Set(parts), ...(takesNull(schema) ? ["null"] : [])].join(` ${words.or} `);
}

/** Return the constraints of a schema in words. A pattern is told last. */
function limitsOf(schema) {
  const told = choices(schema).flatMap((part) => Object.entries(words.limits)
    .filter(([name]) => part[name] !== undefined)
    .map(([name, text]) => text(typeof part[name] === "number" ? number(part[name]) : String(part[name]))));
  return [...new Set(told)];
}

const number = (n) => (Number.isSafeInteger(n) || n >= 1 ? count(n) : String(n));

/** Return the object whose fields a schema, or the items of its array, has; null if none. */
export function objectIn(schema, root) {
  for (const part of choices(schema)) {
    const { schema: found, name } = resolve(part, root);
    if (found.properties) return { schema: found, name };
    const inner = found.items ?? (typeof found.additionalProperties === "object" ? found.additionalProperties : null);
    const deeper = inner && objectIn(inner, root);
    if (deeper) return deeper;
    if (name && choices(found)[0] !== found) return objectIn(found, root);
  }
  return null;
}

/** A table of the fields of an object. Fields of a field are drawn when somebody opens them. */
export function Fields({ schema, root, label }) {
  const required = new Set(schema.required ?? []);
  return html`<div class="table-scroll" role="region" aria-label=${label} tabindex="0"><table class="table fields">
    <thead><tr><th scope="col">${words.field}</th><th scope="col">${words.type}</th>
      <th scope="col">${words.meaning}</th></tr></thead>
    <tbody>${Object.entries(schema.properties).map(([name, field]) => html`<${FieldRow} key=${name}
      ...${{ name, field, root, isRequired: required.has(name) }} />`)}</tbody></table></div>`;
}

export function FieldRow({ name, field, root, isRequired, place }) {
  const [isOpen, setOpen] = useState(false);
  const inner = objectIn(field, root);
  const limits = limitsOf(resolve(field, root).schema);
  const description = field.description ?? resolve(field, root).schema.description;
  return html`<tr>
    <th scope="row"><code>${name}</code>${isRequired && html` <span class="required">${words.required}</span>`}</th>
    <td><span class="type">${typeOf(field, root)}</span>${place && html` <span class="muted">${place}</span>`}</td>
    <td class="cell-wrap">${description}${description && limits.length > 0 && html`<br />`}
      ${limits.length > 0 && html`<span class="limits">${limits.map((limit) => html`<code key=${limit}>${limit}</code> `)}</span>`}
      ${inner && html`<details onToggle=${(event) => setOpen(event.target.open)}><summary>${inner.name ?? words.fields}</summary>
        ${isOpen && html`<${Fields} schema=${inner.schema} root=${root} label=${inner.name ?? name} />`}</details>`}</td>
  </tr>`;
}
