"""Stage 5, training loop: many tensors in one stretch of memory, so that one collective carries them all.

Shapes: n elements of all tensors together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class FlatBuffer:
    """`memory` (at least n,) and, in it, a view for each tensor of a list, of its shape and order in memory.

    Gradients are copied in and the views bound to `.grad` after the sum: one copy. Rejected: `.grad` that stay views,
    into which backward adds. They have to be zeroed, and added to, in place of backward handing its own tensors over,
    and `zero_grad(set_to_none=True)` would undo them.
    """

    def __init__(self, like: Sequence[torch.Tensor], *, multiple_of: int = 1) -> None:
        """`like`: tensors of one dtype and device; `multiple_of`: `memory`'s length is one, padded with zeros."""
        length = sum(tensor.numel() for tensor in like)
        padded = -(-length // multiple_of) * multiple_of
        self.memory = torch.zeros(padded, dtype=like[0].dtype, device=like[0].device)
        self.views: list[torch.Tensor] = []
        offset = 0
        for tensor in like:
            strides = torch.empty_like(tensor, device="meta").stride()  # dense, channels_last kept
            self.views.append(self.memory.as_strided(tensor.shape, strides, offset))
            offset += tensor.numel()

    def copy_in(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """The tensors' values into the views; zeros for None."""
        pairs = list(zip(self.views, tensors, strict=True))
        for view in (view for view, tensor in pairs if tensor is None):
            view.zero_()
        given = [(view, tensor) for view, tensor in pairs if tensor is not None]
        if given:
            torch._foreach_copy_([view for view, _ in given], [tensor for _, tensor in given])

    def copy_out(self, tensors: Sequence[torch.Tensor]) -> None:
        """The views' values into the tensors."""
        torch._foreach_copy_(list(tensors), self.views)


def by_dtype(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The positions of the tensors, those of one dtype together, in the order in which dtypes first appear."""
    groups: dict[torch.dtype, list[int]] = {}
    for position, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype, []).append(position)
    return list(groups.values())
