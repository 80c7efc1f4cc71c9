"""The Python API (`docs/api.md`), which uses the same code as the commands."""
