"""Train and evaluate a model: recipe, batches, optimiser, training loop, early stopping."""
