// Without this script every panel is shown; with it, one at a time, sorted and filtered.
const panels = [...document.querySelectorAll(".panel")];
const tabs = [...document.querySelectorAll("[role=tab]")];
const field = document.getElementById("filter");

function show(name) {
  const shown = panels.find((panel) => panel.id === name) ?? panels[0];
  panels.forEach((panel) => (panel.hidden = panel !== shown));
  for (const tab of tabs) {
    const chosen = tab.getAttribute("aria-controls") === shown?.id;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
}

function filter() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll(".panel tbody tr:not(.baseline)")) {
    const name = row.cells[0].textContent.toLowerCase();
    row.hidden = words.length > 0 && !words.some((word) => name.includes(word));
  }
}

/** By what a column is sorted by, the best first and then the other way round; what has no value stands last. */
function sort(heading) {
  const body = heading.closest("table").tBodies[0];
  const column = heading.cellIndex;
  const descending = heading.getAttribute("aria-sort") !== "descending" && column > 0;
  const rows = [...body.rows].filter((row) => !row.className);
  const value = (row) => Number(row.cells[column].dataset.value ?? NaN);
  rows.sort((a, b) => {
    if (column === 0) return a.cells[0].textContent.trim().localeCompare(b.cells[0].textContent.trim(), "en");
    const [one, other] = [value(a), value(b)];
    return isNaN(one) - isNaN(other) || (descending ? other - one : one - other) || 0;
  });
  body.append(...rows);
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
}

/** Let the address say it, without a jump to the panel. */
function open(tab) {
  const name = tab.getAttribute("aria-controls");
  history.pushState(null, "", `#${encodeURIComponent(name)}`);
  show(name);
}

const route = () => show(panels.find(({id}) => `#${encodeURIComponent(id)}` === location.hash)?.id);
addEventListener("popstate", route);
field?.addEventListener("input", filter);
document.addEventListener("click", ({target}) => {
  if (target.matches("thead button")) sort(target.closest("th"));
});
document.querySelector("[role=tablist]")?.addEventListener("keydown", (event) => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (!step || !event.target.matches("[role=tab]")) return;
  const next = tabs.at((tabs.indexOf(event.target) + step) % tabs.length);
  next.focus();
  open(next);
});
for (const tab of tabs) {
  tab.addEventListener("click", (event) => {
    event.preventDefault();
    open(tab);
  });
}
document.getElementById("theme").addEventListener("click", () => {
  const {dataset} = document.documentElement;
  const dark = dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  dataset.theme = dark ? "light" : "dark";
});
route();
