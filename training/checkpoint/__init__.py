"""Stage 5, training loop: checkpoints as bytes under names, with a manifest that is written last."""
