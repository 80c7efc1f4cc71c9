"""What every floor may use: files, locks, errors, streams of random numbers, the terminal."""
