// The theme wraps tables when a page is shown: what scrolls can be reached by the keyboard, and its search has a name.
document$.subscribe(() => {
  for (const part of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) part.tabIndex = 0;
  document.querySelector(".md-search").setAttribute("aria-label", "Search");
});
