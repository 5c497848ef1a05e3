// Tables with headers, sorting, selection, and keys: j and k move, x selects, Enter opens.

import { rowTarget } from "./focus.js";
import { html, useRef } from "./html.js";
import { useShortcut } from "./keyboard.js";
import { words } from "./words.js";

/** A table of rows.
 *
 * `columns` are `{key, label, render(row), align: "end", sort, hide: "small", header: true}`: `sort` is the name by which
 * `onSort` is asked, `header` marks the cell that names its row (it should hold the row's link). `keyOf(row)` is its key.
 * `selection` is `{selected: Set, onChange(Set), nameOf(row), disabled}`. `sorted` is the name of the present order.
 */
export function Table({ caption, columns, rows, keyOf, selection, sorted, onSort, busy, className = "" }) {
  const body = useRef(null);
  useRowKeys(body, selection);
  return html`<div class="table-scroll ${className}" role="region" aria-label=${caption} tabindex="0">
    <table class="table" aria-busy=${busy ? "true" : undefined}>
      <caption class="visually-hidden">${caption}</caption>
      <thead><tr>
        ${selection && html`<th scope="col" class="cell-select">
          <${SelectAll} rows=${rows} keyOf=${keyOf} selection=${selection} /></th>`}
        ${columns.map((column) => html`<${HeadCell} key=${column.key} ...${{ column, sorted, onSort }} />`)}
      </tr></thead>
      <tbody ref=${body}>${rows.map((row) => html`<${Row} key=${keyOf(row)} id=${keyOf(row)}
        ...${{ row, columns, selection }} />`)}</tbody>
    </table>
  </div>`;
}

function cellClass({ align, hide, wrap }) {
  return [align === "end" && "cell-end", hide && `hide-${hide}`, wrap && "cell-wrap"].filter(Boolean).join(" ");
}

function HeadCell({ column, sorted, onSort }) {
  const { label, sort } = column;
  if (!sort || !onSort) return html`<th scope="col" class=${cellClass(column)}>${label}</th>`;
  const isSorted = sorted === sort;
  const order = sort === "name" ? "ascending" : "descending";
  return html`<th scope="col" class=${cellClass(column)} aria-sort=${isSorted ? order : undefined}>
    <button class="sort" title=${words.table.sortBy(label)} onClick=${() => onSort(sort)}>${label}<span
      class="sort-mark" aria-hidden="true">${isSorted ? (sort === "name" ? "↑" : "↓") : ""}</span></button>
  </th>`;
}

function Row({ id, row, columns, selection }) {
  const isSelected = selection?.selected.has(id);
  const toggle = () => {
    const selected = new Set(selection.selected);
    if (!selected.delete(id)) selected.add(id);
    selection.onChange(selected);
  };
  return html`<tr class=${isSelected ? "row-selected" : ""}>
    ${selection && html`<td class="cell-select"><label class="check"><input type="checkbox" checked=${isSelected}
      disabled=${selection.disabled} onChange=${toggle}
      aria-label=${words.table.select(selection.nameOf?.(row) ?? id)} /></label></td>`}
    ${columns.map((column) => (column.header
      ? html`<th scope="row" key=${column.key} class=${cellClass(column)}>${column.render(row)}</th>`
      : html`<td key=${column.key} class=${cellClass(column)}>${column.render(row)}</td>`))}
  </tr>`;
}

function SelectAll({ rows, keyOf, selection }) {
  const chosen = rows.filter((row) => selection.selected.has(keyOf(row))).length;
  const all = rows.length > 0 && chosen === rows.length;
  const mark = (input) => { if (input) input.indeterminate = chosen > 0 && !all; };
  const toggle = () => selection.onChange(all ? new Set() : new Set(rows.map(keyOf)));
  return html`<label class="check"><input type="checkbox" ref=${mark} checked=${all} disabled=${selection.disabled}
    onChange=${toggle} aria-label=${words.table.selectAll} /></label>`;
}

/** Let j and k move the focus over the rows, and x select the row of the focus; Enter opens, as on any link. */
function useRowKeys(body, selection) {
  const current = () => document.activeElement?.closest?.("tr");
  const move = (step) => {
    const rows = [...(body.current?.rows ?? [])];
    const at = rows.indexOf(current());
    const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + step))];
    if (next) rowTarget(next).focus();
  };
  useShortcut("j", () => move(1), words.keys.next);
  useShortcut("k", () => move(-1), words.keys.previous);
  useShortcut("x", () => {
    const row = current();
    if (!selection || !body.current?.contains(row)) return false;
    row.querySelector(".cell-select input")?.click();
    return true;
  }, selection ? words.keys.select : "");
}
