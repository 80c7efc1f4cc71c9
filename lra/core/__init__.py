"""Utilities for all packages: files and locks, errors, streams of random numbers, the terminal, signals."""
