"""From option files and a command line to checked settings."""
