"""Model around a mixer: embedding, encoder blocks and head."""
