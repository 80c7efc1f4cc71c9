"""What a results folder holds: records and what lies beside them, what sweeps declared, published numbers."""
