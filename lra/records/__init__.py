"""Records, checkpoints and metrics of runs, and the files that keep finished runs."""
