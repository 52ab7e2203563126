"""Stage 8, analysis: the laws of METHODS §2–5 as pure mathematics: arrays in, small records out, no study words."""
