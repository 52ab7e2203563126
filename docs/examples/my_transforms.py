"""Random transforms of torchvision's, for the training set alone: pictures of which one quarter is bright."""

from collections.abc import Callable

import torch
from torch.utils.data import Dataset
from torchvision import transforms

from scalestudy.training.data import Splits


class Pictures(Dataset):
    """Pictures (1, 16, 16) and the number of their bright quarter, 0 to 3."""

    def __init__(self, count: int, seed: int, transform: Callable | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(4, (count,), generator=generator)
        self.pictures = torch.rand(count, 1, 16, 16, generator=generator) / 2
        quarters = self.pictures.view(count, 2, 8, 2, 8)
        quarters[torch.arange(count), self.labels // 2, :, self.labels % 2] += 0.5
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = self.pictures[index]
        return self.transform(picture) if self.transform else picture, int(self.labels[index])


def load(root: str) -> Splits:
    changed = transforms.Compose([transforms.RandomRotation(10), transforms.RandomCrop(16, padding=2)])
    return Splits.from_datasets(Pictures(200, seed=0, transform=changed), Pictures(100, seed=1), num_classes=4)
