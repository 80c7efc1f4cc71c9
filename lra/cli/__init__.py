"""The console commands: arguments in, exit code out."""
