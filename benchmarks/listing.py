"""What `list` and `recover --dry-run` cost over a thousand tasks, as a ratio to bare `python -c pass`."""
