"""The Python API (`docs/api.md`): each function runs the code of a command."""
