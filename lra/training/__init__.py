"""Training: batches, gradient, optimiser, loop, evaluation, early stopping."""
