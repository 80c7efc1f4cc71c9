"""Console commands, which parse arguments, call the other packages and set the exit code."""
