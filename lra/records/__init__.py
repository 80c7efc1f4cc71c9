"""Read and write records, checkpoints and metrics of runs, and the files with kept runs."""
