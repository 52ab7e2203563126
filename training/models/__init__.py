"""Stage 5, training loop: the models that come with the package, and how any model is built and initialised."""

from __future__ import annotations

from training.models.build import build_model, seeded_model
from training.models.convolutional import LeNet, Residual, ResNet18
from training.models.dense import MLP, LinearRegression
from training.models.initialisation import initialise

__all__ = ["MLP", "LeNet", "LinearRegression", "ResNet18", "Residual", "build_model", "initialise", "seeded_model"]
