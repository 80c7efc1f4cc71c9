"""The Python API: each function does what a command does, by the same code. `docs/api.md` describes it."""
