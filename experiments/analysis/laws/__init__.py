"""The laws of docs/formulas.md §2–5 as pure mathematics: arrays in, small records out, and no word
of studies."""
