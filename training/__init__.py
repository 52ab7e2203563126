"""Stage 5, training loop: data-parallel training with PyTorch alone (importing this package imports no torch)."""
