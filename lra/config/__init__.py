"""Compose configurations from option files and a command line, and check them."""
