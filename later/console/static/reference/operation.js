// One call of the API: its parameters, what it takes and answers, its problems, and a command that makes it.

import { Badge, Snippet } from "../lib/components.js";
import { html } from "../lib/html.js";
import { BASE, segment } from "../lib/router.js";
import { referenceWords as words } from "../lib/words/reference.js";
import { curl } from "../tasks/readable.js";
import { FieldRow, Fields, objectIn, resolve, typeOf } from "./schema.js";

/** Return the operations of a description: `{id, method, path, operation, text}`; `text` is searched. */
export function operationsOf(root) {
  return Object.entries(root.paths).flatMap(([path, methods]) => Object.entries(methods)
    .filter(([, operation]) => operation?.operationId)
    .map(([method, operation]) => {
      const parameters = (operation.parameters ?? []).map((parameter) => resolve(parameter, root).schema.name);
      const fields = Object.keys(objectIn(bodyOf(operation) ?? {}, root)?.schema.properties ?? {});
      const text = [operation.operationId, method, path, operation.summary, ...parameters, ...fields].join(" ").toLowerCase();
      return { id: operation.operationId, method: method.toUpperCase(), path, operation, text };
    }));
}

const bodyOf = (operation) => operation.requestBody?.content?.["application/json"]?.schema;

/** Return a command that makes a call with the values of its example. */
function commandOf({ method, path, operation }) {
  const parameters = (operation.parameters ?? []).filter((parameter) => parameter.in === "path");
  const filled = parameters.reduce((text, { name, example, schema }) => (
    text.replace(`{${name}}`, segment(String(example ?? schema?.example ?? name)))), path);
  return curl(method, BASE + filled, operation.requestBody?.content?.["application/json"]?.example);
}

/** Return the types of problems that an operation may answer, as `[status, name]`. */
function problemsOf(operation) {
  return Object.entries(operation.responses)
    .filter(([status, response]) => Number(status) >= 400 && response.$ref)
    .flatMap(([status, response]) => response.$ref.split("/").at(-1).split(".").map((name) => [status, name]));
}

export function Operation({ found, root }) {
  const { operation } = found;
  const scopes = (operation.security ?? []).flatMap((way) => Object.values(way).flat());
  const parameters = (operation.parameters ?? []).map((parameter) => resolve(parameter, root).schema);
  const body = bodyOf(operation);
  const taken = body && objectIn(body, root);
  const answers = Object.entries(operation.responses).filter(([status]) => Number(status) < 400);
  const problems = problemsOf(operation);
  return html`<div class="operation-body">
    <p><${Badge} level=${scopes.length ? "info" : "ok"}>${scopes.length ? words.scope([...new Set(scopes)]) : words.open}<//></p>
    ${operation.description && html`<p>${operation.description}</p>`}
    ${parameters.length > 0 && html`<h4>${words.parameters}</h4><div class="table-scroll" role="region" tabindex="0"
      aria-label=${words.parameters}><table class="table fields"><thead><tr><th scope="col">${words.field}</th>
      <th scope="col">${words.type}</th><th scope="col">${words.meaning}</th></tr></thead><tbody>
      ${parameters.map((parameter) => html`<${FieldRow} key=${parameter.name} name=${parameter.name} root=${root}
        field=${{ ...parameter.schema, description: parameter.description }} isRequired=${parameter.required}
        place=${words.place[parameter.in]} />`)}</tbody></table></div>`}
    ${body && html`<h4>${words.body}${" "}<span class="muted">${typeOf(body, root)}${operation.requestBody.required ? ""
      : `, ${words.optional}`}</span></h4>
      ${operation.requestBody.description && html`<p>${operation.requestBody.description}</p>`}
      ${taken && html`<${Fields} schema=${taken.schema} root=${root} label=${words.body} />`}`}
    <h4>${words.example}</h4><${Snippet} text=${commandOf(found)} label=${words.example} />
    ${answers.map(([status, response]) => html`<${Answer} key=${status} ...${{ status, response, root }} />`)}
    ${problems.length > 0 && html`<h4>${words.problems}</h4><ul class="names">${problems.map(([status, name]) => html`
      <li key=${`${status} ${name}`}><a href=${`${BASE}/problems/${name}`}><code>${status} ${name}</code></a></li>`)}</ul>`}
  </div>`;
}

function Answer({ status, response, root }) {
  const { schema: found } = resolve(response, root);
  const [[type, content] = []] = Object.entries(found.content ?? {});
  const answered = content?.schema && objectIn(content.schema, root);
  const shape = content?.schema ? typeOf(content.schema, root) : type;
  return html`<h4>${words.answer} ${status} <span class="muted">${shape}</span></h4>
    ${found.description && found.description !== "Done." && html`<p>${found.description}</p>`}
    ${answered && html`<${Fields} schema=${answered.schema} root=${root} label=${words.answer} />`}`;
}
