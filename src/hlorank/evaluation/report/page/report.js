"use strict";

// Charts are SVG in colours of the style sheet, so that they follow the colour scheme, on screen and on paper.
const ink = "currentColor";
const text = { labelColor: ink, titleColor: ink, labelFont: "system-ui, sans-serif", titleFont: "system-ui, sans-serif", labelFontSize: 12, titleFontSize: 12, titleFontWeight: 600 };
const config = {
  background: "transparent",
  axis: { ...text, domainColor: ink, tickColor: ink, gridColor: ink, gridOpacity: 0.15 },
  legend: { ...text, symbolSize: 90 },
  view: { stroke: null },
};
const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip: { disableDefaultStyle: true }, config };

const views = {};
for (const place of document.querySelectorAll(".chart")) {
  const specification = JSON.parse(place.nextElementSibling.textContent);
  vegaEmbed(place, specification, options).then(({ view }) => {
    place.dataset.drawn = "";
    (views[place.dataset.views] ??= []).push(view);
  });
}

for (const select of document.querySelectorAll("select[data-chooses]")) {
  select.addEventListener("change", () => {
    for (const view of views[select.dataset.chooses] ?? []) view.signal("graph", select.value).runAsync();
  });
}

const compare = new Intl.Collator("en", { numeric: true }).compare;

/** Orders the rows of a table by one column; what has no value stays at the end. */
function sort(header) {
  const table = header.closest("table");
  const ascending = header.ariaSort !== "ascending";
  const numeric = header.classList.contains("number");
  const value = ({ cells }) => {
    const cell = cells[header.cellIndex];
    if (!numeric) return cell.textContent.trim();
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
