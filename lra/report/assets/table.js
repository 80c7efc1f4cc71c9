// What the page of a folder and the page over many have in common: words that filter, headings that sort, light or dark.

const wordsOf = (field) => field.toLowerCase().split(/\s+/).filter(Boolean);

/** The order in which a heading that is pressed sorts: `first`, and pressed again the other one. */
function pressed(heading, first = "ascending") {
  if (heading.getAttribute("aria-sort") !== first) return first;
  return first === "ascending" ? "descending" : "ascending";
}

/** By numbers where cells have them, else by text; what has no value stands last either way. */
function sort(heading, rows, order) {
  const descending = order === "descending";
  const value = (row) => {
    const cell = row.cells[heading.cellIndex];
    const {value} = cell.dataset;
    return value === undefined ? (cell.querySelector("a") ?? cell).textContent.trim() : Number(value);
  };
  const keyed = rows.map((row) => [value(row), row]);
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", {numeric: true});
  const numbers = keyed.some(([key]) => typeof key === "number");
  const absent = (key) => (numbers ? typeof key !== "number" : key === "");
  keyed.sort(([a], [b]) => absent(a) - absent(b) || (descending ? compare(b, a) : compare(a, b)));
  heading.closest("table").tBodies[0].append(...keyed.map(([, row]) => row));
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
}

document.getElementById("theme").addEventListener("click", () => {
  const {dataset} = document.documentElement;
  const dark = dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  dataset.theme = dark ? "light" : "dark";
});
