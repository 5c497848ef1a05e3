// Texts of the page that describes the API.

const some = (n, one) => `${n} ${one}${n === "1" ? "" : "s"}`;

export const referenceWords = {
  page: "API",
  version: (version) => `Version ${version}`,
  raw: "openapi.json",
  search: "Find a call, a field or a path",
  found: (n) => (n === 1 ? "1 call" : `${n} calls`),
  nothing: "No call has that text.",
  contents: "Calls",
  scope: (names) => `Scope ${names.join(", ")}`,
  open: "No key needed",
  parameters: "Parameters",
  body: "Request body",
  optional: "may be left out",
  answer: "Answer",
  problems: "Problems",
  example: "Example",
  field: "Field", type: "Type", meaning: "Meaning",
  required: "required",
  fields: "fields",
  or: "or",
  place: { path: "in the path", query: "in the query", header: "a header" },
  link: (name) => `Link to ${name}`,
  limits: {
    minimum: (n) => `≥ ${n}`, maximum: (n) => `≤ ${n}`, exclusiveMinimum: (n) => `> ${n}`, exclusiveMaximum: (n) => `< ${n}`,
    minLength: (n) => `at least ${some(n, "character")}`, maxLength: (n) => `at most ${some(n, "character")}`,
    minItems: (n) => `at least ${some(n, "item")}`, maxItems: (n) => `at most ${some(n, "item")}`,
    maxProperties: (n) => `at most ${some(n, "name")}`, pattern: (text) => text, default: (value) => `default ${value}`,
  },
};
