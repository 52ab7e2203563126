"""Tensors in one flat buffer, and those of one number format."""

from __future__ import annotations

import torch

from scalestudy.training.gradient_sync.base import FlatBuffer, by_dtype


def test_a_flat_buffer_keeps_shapes_and_memory_orders() -> None:
    image = torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
    tensors = [torch.tensor(7.0), image, torch.arange(6.0).reshape(2, 3).t()]
    flat = FlatBuffer(tensors, multiple_of=5)
    flat.copy_in(tensors)
    assert flat.memory.shape == (130,)  # 1 + 120 + 6, padded
    assert flat.memory[1:121].tolist() == image.permute(0, 2, 3, 1).flatten().tolist()
    assert flat.memory[127:].tolist() == [0.0] * 3
    assert [view.stride() for view in flat.views] == [tensor.stride() for tensor in tensors]
    flat.memory.mul_(2)
    doubled = [torch.empty_like(tensor) for tensor in tensors]
    flat.copy_out(doubled)
    assert all(torch.equal(one, 2 * other) for one, other in zip(doubled, tensors, strict=True))
    flat.copy_in([None, image, None])
    assert flat.memory[0] == 0.0 == flat.memory[121:].abs().sum()


def test_tensors_of_one_format_go_together() -> None:
    formats = [torch.float32, torch.float64, torch.float32]
    assert by_dtype([torch.zeros(1, dtype=each) for each in formats]) == [[0, 2], [1]]
