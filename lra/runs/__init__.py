"""One run or many: what persists, and what is shown."""
