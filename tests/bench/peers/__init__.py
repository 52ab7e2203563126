"""The same study as users of other tools write it: whole programs, measured and counted by `make bench-peers`."""
