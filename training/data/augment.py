"""Stage 5, training loop: augmentation of a batch of images on its device, random numbers keyed by example.

Shapes: N examples, C channels, H × W pixels. A random number is a hash of (seed, epoch, example's index) and nothing
else, so that an example is changed alike at any world size, in any batch, on any device. Rejected: a torch.Generator,
whose numbers depend on the position in a batch, on the batches before and on the kind of device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

PADDING = 4  # pixels of zeros on each side of which a crop takes part

Augmentation = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""(inputs (N, C, H, W), examples' indices (N,) int64 on the same device, key of the epoch) -> changed inputs."""


def crop_flip(inputs: torch.Tensor, examples: torch.Tensor, key: int) -> torch.Tensor:
    """A crop of the zero-padded image at one of 9 × 9 places, mirrored left to right or not, all equally likely.

    The usual augmentation of CIFAR-10 (He et al. 2015, arXiv 1512.03385, section 4.2). Inputs and result (N, C, H, W).
    """
    count, channels, height, width = inputs.shape
    words = random_words(examples, key)
    places = 2 * PADDING + 1
    top, left = (((words >> shift) & 0xFFFFFF) * places >> 24 for shift in (0, 24))  # 24 bits each: 0 … 8
    mirrored = words < 0  # the highest bit
    rows = top.unsqueeze(1) + torch.arange(height, device=inputs.device)
    columns = torch.arange(width, device=inputs.device)
    columns = left.unsqueeze(1) + torch.where(mirrored.unsqueeze(1), width - 1 - columns, columns)
    pixels = rows.unsqueeze(2) * (width + 2 * PADDING) + columns.unsqueeze(1)  # (N, H, W) in the padded image
    padded = F.pad(inputs, (PADDING,) * 4).flatten(2)
    return padded.gather(2, pixels.view(count, 1, height * width).expand(-1, channels, -1)).view(inputs.shape)


AUGMENTATIONS: Mapping[str, Augmentation | None] = {"none": None, "crop_flip": crop_flip}
"""The values of the config's `augment`."""

_STEP, _FIRST, _SECOND = (  # of SplitMix64, as signed numbers
    constant - 2**64 for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def random_words(examples: torch.Tensor, key: int) -> torch.Tensor:
    """64 random bits an example, (N,) int64: number `example` of the SplitMix64 sequence that starts at the key.

    Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators". int64 wraps around, as it has to.
    """
    words = (examples + 1) * _STEP + key
    words = (words ^ _shifted(words, 30)) * _FIRST
    words = (words ^ _shifted(words, 27)) * _SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift to the right that brings in zeros; int64's own brings in the sign."""
    return (words >> bits) & (2 ** (64 - bits) - 1)
