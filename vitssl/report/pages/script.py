"""The script of the report page: it sorts tables by a click on a column's name, marks what is wider than the page, and copies text.

Without the script, the page shows the same content.
"""

from __future__ import annotations

SCRIPT = """\
for (const head of document.querySelectorAll("thead tr:last-child th")) {
  const sort = () => {
    const column = head.cellIndex, body = head.closest("table").tBodies[0];
    const now = head.getAttribute("aria-sort"), rising = now ? now === "descending" : !head.classList.contains("num");
    const key = row => {
      const cell = row.cells[column], value = cell.dataset.value;
      return value === undefined ? (head.classList.contains("num") ? null : cell.textContent) : Number(value);
    };
    const order = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, undefined, {numeric: true})) * (rising ? 1 : -1);
    const rows = [...body.rows].map(row => [key(row), row]);
    rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : order(a, b)));  // what has no number comes last
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    body.append(...rows.map(([, row]) => row));
  };
  head.tabIndex = 0;
  head.title = "sort by this column";
  head.addEventListener("click", sort);
  head.addEventListener("keydown", event => event.key === "Enter" && sort());
}
const mark = box => box.parentNode.classList.toggle("cut", box.scrollWidth > box.clientWidth + 1);
const size = new ResizeObserver(boxes => boxes.forEach(({target}) => mark(target)));
for (const box of document.querySelectorAll(".scroll")) {
  mark(box);  // at once: who prints the page, or reads it by a program, may not wait for the observer
  size.observe(box);
}
for (const block of navigator.clipboard ? document.querySelectorAll("pre") : []) {
  const button = document.createElement("button");
  button.textContent = "copy";
  button.addEventListener("click", () => navigator.clipboard.writeText(block.textContent).then(() => button.textContent = "copied"));
  block.after(button);
}
"""
