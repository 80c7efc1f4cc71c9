"""Measure time and memory of attentions and training steps, side by side in one process."""
