// Texts of strangers, made readable: what cannot be seen is escaped, JSON is indented, a long text is cut.

/** The most characters of a content that a page shows. */
export const SHOWN = 65_536;
// Control characters, and those that turn the direction of what follows.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
const JSON_TOKEN = /"(?:[^"\\]+|\\.)*"?|[{}[\],:]|[^\s{}[\],:"]+/g;

/** Return a text with unseen characters as `\u202e`; JSON keeps its meaning. */
export function visible(text) {
  return text.replace(UNSEEN, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Return `text` cut after `SHOWN` characters, never within a pair of surrogates. */
export function cut(text) {
  if (text.length <= SHOWN) return text;
  return text.slice(0, text.codePointAt(SHOWN - 1) > 0xffff ? SHOWN - 1 : SHOWN);
}

/** Return the beginning of a JSON object or array with a line for each value, or null if the text is neither.
 *
 * Tokens stay as they are: a number with twenty digits and a name that occurs twice are shown as they were sent.
 */
export function indented(text) {
  if (!/^\s*[[{]/.test(text) || !isJson(text)) return null;
  let depth = 0;
  let out = "";
  let before = "";
  for (const [token] of text.slice(0, 2 * SHOWN).matchAll(JSON_TOKEN)) {
    const closes = token === "}" || token === "]";
    if (closes) depth -= 1;
    const isEmpty = closes && (before === "{" || before === "[");
    if ((closes && !isEmpty) || (!closes && (before === "{" || before === "[" || before === ","))) {
      out += `\n${"  ".repeat(Math.min(depth, 100))}`;
    }
    out += token === ":" ? ": " : token;
    if (token === "{" || token === "[") depth += 1;
    before = token;
    if (out.length > SHOWN) break;
  }
  return out;
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

export function byteLength(text) {
  return new TextEncoder().encode(text).length;
}

/** Return a command of the shell that makes a call of the API. A body of several fields has a line for each. */
export function curl(method, path, body) {
  const lines = [`curl ${method === "POST" ? "" : `-X ${method} `}${quoted(location.origin + path)}`];
  const isLong = Object.keys(body ?? {}).length > 1;
  if (body !== undefined) lines.push(`-d ${quoted(visible(JSON.stringify(body, null, isLong ? 2 : 0)))}`);
  return lines.join(" \\\n  ");
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
