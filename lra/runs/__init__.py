"""Train, test, resume and rerun single runs, each in its folder."""
