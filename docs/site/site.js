// The theme wraps tables when a page is shown: what scrolls can be reached by the keyboard, and its search has a name.
document$.subscribe(() => {
  const scrolled = ".md-typeset__scrollwrap, pre > code, .wide";
  for (const part of document.querySelectorAll(scrolled)) part.tabIndex = 0;
  document.querySelector(".md-search").setAttribute("aria-label", "Search");
});
