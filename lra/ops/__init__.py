"""Tensor operations that several mixers share."""
