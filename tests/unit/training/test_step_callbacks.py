"""The callbacks that count the steps of Lightning and of Transformers' Trainer, by the real libraries without Ray.

Importing these takes many seconds, so the tests do it, and not this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from scalestudy.training.steps import METER

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # the libraries' own warnings are not ours


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The samples of each step, as they reach the meter."""
    steps: list[float] = []
    monkeypatch.setattr(METER, "step", steps.append)
    return steps


# --- Lightning: 20 examples in batches of 8, 8 and 4 ------------------------------------------------------------------


def fit(*, steps_by_hand: int = 0, batch: Any = None, resume: Path | None = None, **options: Any) -> Any:
    """Train a linear model for options' epochs. steps_by_hand: steps a batch with manual optimization."""
    import lightning.pytorch as pl

    from scalestudy.lightning import StepCallback

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)
            self.automatic_optimization = not steps_by_hand

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            inputs, labels = batch if isinstance(batch, list) else (batch["inputs"], batch["labels"])
            loss = F.cross_entropy(self.layer(inputs), labels)
            for number in range(steps_by_hand):
                self.manual_backward(loss, retain_graph=number + 1 < steps_by_hand)
                self.optimizers().step()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    count = options.pop("count", None)
    data = TensorDataset(torch.ones(20, 3), torch.zeros(20, dtype=torch.int64))
    trainer = pl.Trainer(
        **{"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False},
        **{"enable_progress_bar": False, "enable_model_summary": False, **options},
        callbacks=[StepCallback(count) if count else StepCallback()],
    )
    trainer.fit(Net(), DataLoader(data, batch_size=8, collate_fn=batch), ckpt_path=resume)
    return trainer


def test_lightning_counts_each_batch(counted: list[float]) -> None:
    fit(max_epochs=2)
    assert counted == [8, 8, 4, 8, 8, 4]


def test_lightning_counts_a_step_with_all_its_micro_batches(counted: list[float]) -> None:
    trainer = fit(max_epochs=2, accumulate_grad_batches=2)
    assert counted == [16, 4, 16, 4]  # the last micro-batch of an epoch makes a step alone
    assert trainer.global_step == len(counted)


def test_lightning_counts_a_batch_of_several_optimizer_steps_once(counted: list[float]) -> None:
    assert fit(max_epochs=1, steps_by_hand=2).global_step == 6
    assert counted == [8, 8, 4]


def test_lightning_goes_on_from_a_checkpoint_in_whole_steps(counted: list[float], tmp_path: Path) -> None:
    fit(max_epochs=1, accumulate_grad_batches=2).save_checkpoint(tmp_path / "first.ckpt")
    counted.clear()
    fit(max_epochs=2, accumulate_grad_batches=2, resume=tmp_path / "first.ckpt")
    assert counted == [16, 4]


def test_lightning_s_batches_may_be_named_or_counted_by_hand(counted: list[float]) -> None:
    def named(rows: list[Any]) -> dict[str, Any]:
        return {"labels": torch.stack([row[1] for row in rows]), "inputs": torch.stack([row[0] for row in rows])}

    fit(max_epochs=1, batch=named)
    fit(max_epochs=1, count=lambda batch: 10 * len(batch[0]))
    assert counted == [8, 8, 4, 80, 80, 40]


# --- Transformers: 20 examples in batches of 8, 8 and 4 ---------------------------------------------------------------


def trained(folder: Path, **options: Any) -> Any:
    """Train a linear model by Trainer, in options' epochs."""
    from transformers import Trainer, TrainingArguments

    from scalestudy.transformers import StepCallback

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": F.cross_entropy(self.layer(inputs), labels)}

    data = [{"inputs": torch.ones(3), "labels": torch.tensor(0)}] * 20
    arguments = TrainingArguments(
        **{"output_dir": str(folder), "per_device_train_batch_size": 8, "use_cpu": True, "report_to": "none"},
        **{"disable_tqdm": True, "save_strategy": "no", "dataloader_pin_memory": False, **options},
    )
    trainer = Trainer(model=Net(), args=arguments, train_dataset=data, callbacks=[StepCallback()])
    trainer.train()
    return trainer


def test_transformers_counts_whole_batches(counted: list[float], tmp_path: Path) -> None:
    """One worker keeps an epoch's smaller last batch, of 4 here, whose size Trainer does not tell."""
    trained(tmp_path, num_train_epochs=2)
    assert counted == [8, 8, 8] * 2
    counted.clear()
    trained(tmp_path, num_train_epochs=2, dataloader_drop_last=True)
    assert counted == [8, 8] * 2


def test_transformers_counts_a_step_with_the_micro_batches_that_it_has(counted: list[float], tmp_path: Path) -> None:
    trainer = trained(tmp_path, num_train_epochs=2, gradient_accumulation_steps=2)
    assert counted == [16, 8] * 2
    assert trainer.state.global_step == len(counted)


def test_transformers_batches_are_filled_up_where_there_are_several_workers() -> None:
    """What the callback's exactness rests on: each of two workers gets whole batches only, and as many of them."""
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler

    for rank in range(2):
        batches = list(BatchSamplerShard(BatchSampler(range(20), 8, drop_last=False), 2, rank))
        assert [len(batch) for batch in batches] == [8, 8]
