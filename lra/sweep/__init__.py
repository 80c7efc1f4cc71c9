"""Plan and launch the runs of a sweep, and search for the best settings. Hydra's sweepers call this package."""
