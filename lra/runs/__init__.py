"""Runs: settings, folder, training and test, loggers, reruns."""
