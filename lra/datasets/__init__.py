"""Prepare and read the data of tasks: read raw files, tokenise them, cache and split them, compute baselines."""
