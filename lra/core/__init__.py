"""Utilities for all other packages: errors, files and locks, random streams, terminal output and signals."""
