"""Data-parallel training with PyTorch alone. Importing this package imports no torch."""
