"""Tables, pages and figures: what is said, for people and for other programs."""
