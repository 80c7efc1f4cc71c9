"""Time and memory of attentions and training steps, always side by side in one run."""
