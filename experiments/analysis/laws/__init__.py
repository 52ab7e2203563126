"""Stage 8, analysis: the laws of formulas.md §2–5 as pure mathematics: arrays in, small records out, no study words."""
