"""Whether pages and texts say what the records say."""
