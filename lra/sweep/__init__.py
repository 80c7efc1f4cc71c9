"""Sweeps: plan the runs, launch them, search for settings. Hydra's sweepers call this package."""
