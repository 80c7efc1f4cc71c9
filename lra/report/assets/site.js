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
  const words = wordsOf(field.value);
  for (const row of document.querySelectorAll(".panel tbody tr:not(.baseline)")) {
    const name = row.cells[0].textContent.toLowerCase();
    row.hidden = words.length > 0 && !words.some((word) => name.includes(word));
  }
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
  if (!target.matches("thead button")) return;
  const heading = target.closest("th");
  const rows = [...heading.closest("table").querySelectorAll("tbody tr:not(.baseline)")];
  sort(heading, rows, pressed(heading, heading.cellIndex ? "descending" : "ascending")); // what is better first
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
route();
