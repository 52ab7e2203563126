"""A data set and losses of your own: rings around a centre, a loss that forgives, a metric for the study.

Name them in a spec as `data: custom_data:load`, `loss: custom_data:smoothed` and `metric: custom_data:top_two`, with
this file in the folder where you call `scalestudy`; see docs/bring-your-model.md.
"""

import torch
import torch.nn.functional as F

from scalestudy.training.data import Splits


def load(root: str, train_samples: int = 1000, test_samples: int = 200, rings: int = 4) -> Splits:
    """Pictures (n, 1, 16, 16) of noisy rings, whose class is the ring's radius. root: the folder of data sets, not used
    here; the rest comes from `data_args`."""
    inputs, targets = _draw(train_samples + test_samples, rings)
    return Splits(
        train_inputs=inputs[:train_samples],
        train_targets=targets[:train_samples],
        test_inputs=inputs[train_samples:],
        test_targets=targets[train_samples:],
        num_classes=rings,
    )


def _draw(count: int, rings: int, side: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """The same numbers in every process and every trial: by a generator of its own, not the trial's."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(rings, (count,), generator=generator)
    line = torch.linspace(-1, 1, side)
    radius = (line[:, None] ** 2 + line[None, :] ** 2).sqrt()
    wanted = (targets + 1) / (rings + 1)
    pictures = torch.exp(-(((radius - wanted[:, None, None]) / 0.15) ** 2))
    noisy = 0.2 * pictures + 0.8 * torch.rand(pictures.shape, generator=generator)
    return noisy.unsqueeze(1), targets


def smoothed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy with a tenth of the weight on the other classes: outputs (N, K), targets (N,) -> losses (N,)."""
    return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def top_two(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """1 where the class is among the two likeliest, else 0: (N,). Its mean over the test set is `test_top_two`."""
    return (outputs.topk(2, dim=1).indices == targets[:, None]).any(dim=1).float()
