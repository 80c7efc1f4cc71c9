"""Retraining of kept runs."""
