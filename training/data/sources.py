"""Stage 5, training loop: the built-in data sets that live in files, by their names in registry.DATASETS (no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from training.data.cifar import CIFAR10
from training.data.files import FileSource
from training.data.idx import FASHION_MNIST, MNIST

SOURCES: Mapping[str, FileSource] = MappingProxyType(
    {source.name: source for source in (MNIST, FASHION_MNIST, CIFAR10)}
)
"""Name -> where its files live and what they must be."""
