// The theme wraps tables when it shows a page. Let the keyboard focus all that scrolls, and name the search for screen readers.
document$.subscribe(() => {
  for (const part of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) part.tabIndex = 0
  document.querySelector(".md-search").setAttribute("aria-label", "Search")
  for (const table of document.querySelectorAll(".md-typeset__table table")) {
    table.className = "sortable n-last"  // for sortable.min.js; n-last: empty cells come last
    for (const cell of table.querySelectorAll("td")) {
      const text = cell.textContent.replace("–", "")
      const number = parseFloat(text.replaceAll(",", ""))  // `55.40 ± 1.79` and `3 of 5` are sorted by their first number
      cell.dataset.sort = isNaN(number) ? text : number
    }
    if (table.rows.length > 18) table.closest(".md-typeset__scrollwrap").before(filterOf(table))
  }
})

function filterOf(table) {
  const input = Object.assign(document.createElement("input"), { type: "search", className: "filter" })
  input.ariaLabel = input.placeholder = "Filter rows: simple, linear"
  input.oninput = () => {
    const words = input.value.toLowerCase().split(",").map((word) => word.trim())
    for (const row of table.tBodies[0].rows)
      row.hidden = !words.some((word) => row.textContent.toLowerCase().includes(word))
  }
  return input
}
