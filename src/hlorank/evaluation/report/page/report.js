"use strict";

for (const select of document.querySelectorAll("select[data-chooses]")) {
  const titles = document.querySelectorAll(`[data-views=${select.dataset.chooses}] .mark-symbol title`);
  select.addEventListener("change", () => {
    for (const title of titles) {
      const [graph] = title.textContent.split("\n");
      title.parentElement.style.display = ["", graph].includes(select.value) ? "" : "none";
    }
  });
}

const compare = new Intl.Collator("en", { numeric: true }).compare;

/** Sort the rows of a table by one column; rows without a value stay at the end. */
function sort(header) {
  const table = header.closest("table");
  const ascending = header.ariaSort !== "ascending";
  const numeric = header.classList.contains("number");
  const value = ({ cells }) => {
    const cell = cells[header.cellIndex];
    if (!numeric) return (cell.querySelector("span") ?? cell).textContent.trim();
    return cell.dataset.value ? Number(cell.dataset.value) : null;
  };
  const missing = (key) => key === null || key === "";
  const rows = Array.from(table.tBodies[0].rows, (row) => [value(row), row]);
  rows.sort(([a], [b]) => {
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    return (ascending ? 1 : -1) * (numeric ? a - b : compare(a, b));
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
  for (const other of header.parentElement.cells) other.ariaSort = "none";
  header.ariaSort = ascending ? "ascending" : "descending";
}

for (const header of document.querySelectorAll(".sortable thead th")) {
  header.ariaSort = "none";
  header.querySelector("button").addEventListener("click", () => sort(header));
}
