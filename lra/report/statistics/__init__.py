"""What is said of the records: cells, columns, comparisons, verdicts and caveats."""
