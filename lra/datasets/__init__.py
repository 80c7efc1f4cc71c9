"""Base classes and shared parts of tasks: raw files, tokens, cache, splits, baselines."""
