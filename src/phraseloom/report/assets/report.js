"use strict";
// Tables are sorted by a click on a heading; what a mark of a chart says follows the pointer; print opens what is folded, but for recipes.

function sortBy(heading) {
  const table = heading.closest("table");
  const column = Array.from(heading.parentNode.children).indexOf(heading);
  const descending = heading.getAttribute("aria-sort") === "ascending";
  const sign = descending ? -1 : 1;
  const key = (row) => {
    const cell = row.children[column];
    const value = cell.dataset.value;
    return value === undefined ? cell.textContent : Number(value);
  };
  const empty = (value) => value === "" || value === "–";
  const compare = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (empty(x) || empty(y)) return empty(x) - empty(y);
    if (typeof x === "number" && typeof y === "number") return sign * (x - y);
    return sign * String(x).localeCompare(String(y), "en", { numeric: true });
  };
  for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  table.tBodies[0].append(...Array.from(table.tBodies[0].rows).sort(compare));
}

document.querySelectorAll("table.sortable thead button").forEach((button) => {
  button.addEventListener("click", () => sortBy(button.closest("th")));
});

const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);

// The titles of marks become the tip, so that they are shown at once and not twice.
document.querySelectorAll("figure.chart svg title").forEach((title) => {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
});

document.addEventListener("pointermove", (event) => {
  const marks = document.elementsFromPoint(event.clientX, event.clientY).filter((one) => "tip" in one.dataset);
  tip.hidden = marks.length === 0;
  if (tip.hidden) return;
  tip.textContent = marks.map((one) => one.dataset.tip).reverse().join("\n");
  const right = event.clientX + 14 + tip.offsetWidth > window.innerWidth;
  tip.style.left = `${right ? event.clientX - 14 - tip.offsetWidth : event.clientX + 14}px`;
  tip.style.top = `${event.clientY + 14}px`;
});

let folded = [];
window.addEventListener("beforeprint", () => {
  folded = Array.from(document.querySelectorAll("section:not(#provenance) details:not([open])"));
  folded.forEach((one) => (one.open = true));
});
window.addEventListener("afterprint", () => folded.forEach((one) => (one.open = false)));
