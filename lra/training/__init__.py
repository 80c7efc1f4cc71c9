"""From batches to weights: knows no folder, no title and no terminal."""
