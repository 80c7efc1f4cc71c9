"""Base classes of mixers, and tensor operations that several attentions share."""
