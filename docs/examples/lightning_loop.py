"""A loop of Ray Train's with a Lightning module, as its documentation has them.

`StepCallback` is the only line for a study, and may go. See docs/ray-loops.md.
"""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import ray.train
import torch
import torch.nn.functional as F
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from scalestudy.lightning import StepCallback

TRAIN, TEST = 1536, 512  # examples
INPUTS, PATTERNS, CLASSES = 64, 40, 10


def pictures(count: int, seed: int) -> TensorDataset:
    """Noisy copies of forty patterns, (count, 64), and their classes; each class has four of the patterns."""
    patterns = torch.randn(PATTERNS, INPUTS, generator=torch.Generator().manual_seed(0))  # the same in both sets
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(PATTERNS, (count,), generator=generator)
    return TensorDataset(patterns[chosen] + torch.randn(count, INPUTS, generator=generator), chosen % CLASSES)


class Net(pl.LightningModule):
    def __init__(self, hidden: int, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, labels = batch
        return F.cross_entropy(self.layers(inputs), labels)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, labels = batch
        hits = (self.layers(inputs).argmax(dim=1) == labels).float()
        self.log("eval_acc", hits.mean(), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        self.log("seen", float((self.current_epoch + 1) * TRAIN), sync_dist=True)  # the same on every rank

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)


def train_loop_per_worker(config: dict[str, Any]) -> None:
    pl.seed_everything(config["seed"])  # the order of the examples, too
    trainer = pl.Trainer(
        max_epochs=config["epochs"],
        accelerator="auto",
        devices="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=[StepCallback(), RayTrainReportCallback()],
        num_sanity_val_steps=0,
        enable_checkpointing=False,  # Ray Train keeps the checkpoints
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer = prepare_trainer(trainer)
    model = Net(config["hidden"], config["learning_rate"])
    train_loader = DataLoader(pictures(TRAIN, seed=1), batch_size=config["batch_size_per_worker"], shuffle=True)
    test_loader = DataLoader(pictures(TEST, seed=2), batch_size=128)
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            path = Path(folder, RayTrainReportCallback.CHECKPOINT_NAME)
            trainer.fit(model, train_loader, test_loader, ckpt_path=path)
    else:
        trainer.fit(model, train_loader, test_loader)
