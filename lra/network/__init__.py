"""The model around an attention."""
