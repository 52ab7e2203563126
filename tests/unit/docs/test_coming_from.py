"""docs/coming-from.md: a loop of each kind, and the same training here, from the parts that the page names.

A loop by hand draws parameters and order of the examples as a study does, so that both end at the same numbers. Neither
Lightning nor Transformers is needed: stand-ins have the few names of theirs that are used.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR

from docs.examples import lightning_steps
from scalestudy.training.config import ScheduleConfig, TrainConfig
from scalestudy.training.data import Splits
from scalestudy.training.device import has_precision
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.train import train
from scalestudy.training.seeding import epoch_order, seed_parameters
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, make_config, run_training, state_of


class LightningModule(nn.Module):
    """As Lightning's without a Trainer; importing Lightning itself takes seconds."""

    def log(self, name: str, value: Any, **how: Any) -> None:
        raise AssertionError("nobody listens")


HERE = "tests.unit.docs.test_coming_from"
EXAMPLES = "docs.examples"
SAMPLES, BATCH, EPOCHS = 192, 32, 3
STEPS = EPOCHS * SAMPLES // BATCH


def pictures(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (n, 8) and classes (n,) of three."""
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs[:, :3].argmax(dim=1)


def load(root: str) -> Splits:
    return Splits(*pictures(SAMPLES, seed=0), *pictures(96, seed=1), num_classes=3)


def load_named(root: str) -> Any:
    """The same by name, as a tokenizer and a collator make batches."""
    train, test = ({"pixels": x, "labels": y} for x, y in (pictures(SAMPLES, seed=0), pictures(96, seed=1)))
    return Splits.from_tensors(train, test)


class Net(nn.Sequential):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__(nn.Linear(8, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, 3))


def batches(epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    inputs, targets = pictures(SAMPLES, seed=0)
    for places in epoch_order(SAMPLES, 0, epoch).split(BATCH):
        yield inputs[places], targets[places]


def the_config(**changes: Any) -> TrainConfig:
    common = {"model": f"{HERE}:Net", "model_args": {}, "data": f"{HERE}:load", "data_args": {}}
    return make_config(**{**common, "batch_size": BATCH, "epochs": EPOCHS, "learning_rate": 0.02, **changes})


def same(here: dict[str, Any], loss: float, state: dict[str, Any], least: float = 1e-5) -> None:
    """The last epoch's mean loss and every parameter, after a training that learnt."""
    losses = [each[0] for each in here["curve"]]
    assert losses[-1] == pytest.approx(loss, abs=least)
    assert losses[-1] < 0.8 * losses[0]
    assert max(abs(here["state"][name] - state[name]).max() for name in state) < 10 * least


# --- torchrun: DistributedDataParallel, autocast, accumulation, clipping, a scheduler's step an epoch -----------------


def ddp_loop(worker: Worker, precision: str) -> tuple[float, dict[str, Any]]:
    seed_parameters(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, EPOCHS + 1):
        losses = []
        for inputs, targets in batches(epoch):
            optimizer.zero_grad()
            mine = [each.chunk(worker.world_size)[worker.rank].chunk(2) for each in (inputs, targets)]
            for index, (some_inputs, some_targets) in enumerate(zip(*mine, strict=True)):
                with model.no_sync() if index == 0 else contextlib.nullcontext():
                    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                        outputs = model(some_inputs)
                    loss = F.cross_entropy(outputs.float(), some_targets) / 2
                    loss.backward()
                losses.append(loss.detach() * 2)
            clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        scheduler.step()
    mean = torch.stack(losses).mean()
    torch.distributed.all_reduce(mean)
    return mean.item() / worker.world_size, state_of(model.module)


HAS_BF16 = pytest.mark.skipif(not has_precision("bf16", torch.device("cpu")), reason="this CPU has no bfloat16")


@pytest.mark.parametrize(("precision", "least"), [("fp32", 1e-5), pytest.param("bf16", 1e-3, marks=HAS_BF16)])
def test_a_loop_for_torchrun(ranks: GlooPool, precision: str, least: float) -> None:
    config = the_config(
        optimizer={"name": "adamw", "weight_decay": 0.1},
        schedule={"name": "StepLR", "args": {"step_size": 1, "gamma": 0.7}, "per": "epoch"},
        **{"precision": precision, "accumulation": 2, "gradient_clip": 0.5},
    )
    (loss, state), _ = ranks.run(2, ddp_loop, precision)
    same(ranks.run(2, run_training, config)[0], loss, state, least)


# --- Ray Train: train_loop_per_worker(config), a scheduler's step a batch, a report an epoch --------------------------


def train_loop_per_worker(config: dict[str, Any], report: Callable[[dict[str, float]], None]) -> nn.Module:
    """Without prepare_model and prepare_data_loader, which change nothing on one worker."""
    seed_parameters(0)
    model = Net(config["hidden"])
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"], betas=(0.8, 0.95))
    scheduler = CosineAnnealingLR(optimizer, T_max=STEPS, eta_min=0.001)
    test_inputs, test_targets = pictures(96, seed=1)
    for epoch in range(1, config["epochs"] + 1):
        total = 0.0
        for inputs, targets in batches(epoch):
            loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item() * len(targets)
        accuracy = (model(test_inputs).argmax(dim=1) == test_targets).float().mean().item()
        report({"loss": total / SAMPLES, "accuracy": accuracy})
    return model


def test_a_loop_of_ray_train() -> None:
    reported: list[dict[str, float]] = []
    model = train_loop_per_worker({"hidden": 24, "lr": 0.02, "epochs": EPOCHS}, reported.append)
    config = the_config(
        model_args={"hidden": 24},
        optimizer={"name": "adam", "betas": [0.8, 0.95]},
        schedule={"name": "CosineAnnealingLR", "args": {"T_max": STEPS, "eta_min": 0.001}},
    )
    here = run_training(ALONE, config)
    same(here, reported[-1]["loss"], state_of(model))
    assert [each[2] for each in here["curve"]] == pytest.approx([each["accuracy"] for each in reported])


# --- Lightning --------------------------------------------------------------------------------------------------------


class Lit(LightningModule):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.net, self.lr = Net(hidden), 1e-3

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.net(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        loss = F.cross_entropy(self(inputs), targets, label_smoothing=0.1)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets = batch
        right = (self(inputs).argmax(dim=1) == targets).float().mean()
        self.log("val_acc", right, prog_bar=True)
        self.log_dict({"val/wrong": 1 - right})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(self.parameters(), lr=self.lr, alpha=0.9)


class Scheduled(Lit):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [StepLR(optimizer, 1)]


class Fixed(Lit):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def fit(module: Lit) -> float:
    """As Trainer(max_epochs=3, gradient_clip_val=0.5).fit: the last epoch's mean loss."""
    module.log = lambda *told, **how: None
    optimizer = module.configure_optimizers()
    for epoch in range(1, EPOCHS + 1):
        losses = []
        for index, batch in enumerate(batches(epoch)):
            loss = module.training_step(batch, index)
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test_a_lightning_module_by_its_own_steps() -> None:
    seed_parameters(0)
    module = Lit(hidden=24)
    module.lr = 0.02
    loss = fit(module)
    config = the_config(
        **{"model": f"{HERE}:Lit", "model_args": {"hidden": 24}, "gradient_clip": 0.5},
        **{"task": f"{EXAMPLES}.lightning_steps:Steps", "metric": "val_acc"},
        optimizer={"name": f"{EXAMPLES}.lightning_steps:optimizer"},
    )
    here = run_training(ALONE, config)
    same(here, loss, state_of(module))
    inputs, targets = pictures(96, seed=1)
    right = (module(inputs).argmax(dim=1) == targets).float().mean().item()
    (*_, last) = train(config, ALONE).records
    assert (last.test_metric, last.to_dict()["test_val_wrong"]) == pytest.approx((right, 1 - right))
    assert last.test_loss == pytest.approx(F.cross_entropy(module(inputs), targets, label_smoothing=0.1).item())


def test_a_lightning_module_trains_alike_on_two_workers(ranks: GlooPool) -> None:
    config = the_config(
        **{"model": f"{HERE}:Lit", "task": f"{EXAMPLES}.lightning_steps:Steps", "metric": "val_acc"},
        optimizer={"name": f"{EXAMPLES}.lightning_steps:optimizer"},
    )
    alone, both = ranks.run(1, run_training, config)[0], ranks.run(2, run_training, config)[0]
    same(both, alone["curve"][-1][0], alone["state"], least=1e-4)


def test_a_lightning_module_as_a_plain_model() -> None:
    """Its forward, with a loss and an optimizer of the spec."""
    assert train(the_config(model=f"{HERE}:Lit", optimizer={"name": "adam"}), ALONE).records[-1].test_metric > 0.7


@pytest.mark.parametrize(
    ("module", "told"), [(Scheduled, "more than an optimizer"), (Fixed, "does not read self.lr")], ids=["more", "fixed"]
)
def test_configure_optimizers_that_would_hide_the_studys_rate_is_refused(module: type[Lit], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        lightning_steps.optimizer(module(), 0.1)


# --- Transformers' Trainer --------------------------------------------------------------------------------------------


@dataclass
class Output:
    """As transformers.modeling_outputs.SequenceClassifierOutput."""

    loss: torch.Tensor
    logits: torch.Tensor


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> Output:
        logits = self.net(pixels)
        return Output(F.cross_entropy(logits, labels), logits)


def trainer_loop(warm_up: int) -> tuple[float, nn.Module]:
    """As Trainer's: weight_decay=0.1, warmup_steps, max_grad_norm=1.0, gradient_accumulation_steps=2."""
    seed_parameters(0)
    model = Classifier()
    matrices = [each for name, each in model.named_parameters() if name in ("net.0.weight", "net.3.weight")]
    others = [each for each in model.parameters() if all(each is not one for one in matrices)]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.02)

    def rate(step: int) -> float:  # as transformers.get_linear_schedule_with_warmup
        return step / max(1, warm_up) if step < warm_up else max(0.0, (STEPS - step) / max(1, STEPS - warm_up))

    scheduler = LambdaLR(optimizer, rate)
    for epoch in range(1, EPOCHS + 1):
        losses = []
        for pixels, labels in batches(epoch):
            for some, other in zip(pixels.chunk(2), labels.chunk(2), strict=True):
                loss = model(pixels=some, labels=other).loss / 2
                loss.backward()
                losses.append(loss.item() * 2)
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return sum(losses) / len(losses), model


def test_a_model_with_a_loss_of_its_own_as_trainer_trains_it() -> None:
    loss, model = trainer_loop(warm_up=4)
    config = the_config(
        **{"model": f"{HERE}:Classifier", "data": f"{HERE}:load_named", "task": f"{EXAMPLES}.trainer_parts:Labelled"},
        optimizer={"name": f"{EXAMPLES}.trainer_parts:decayed", "args": {"weight_decay": 0.1}},
        schedule={"name": f"{EXAMPLES}.trainer_parts:linear", "args": {"warm_up": 4}},
        **{"gradient_clip": 1.0, "accumulation": 2},
    )
    here = run_training(ALONE, config)
    same(here, loss, state_of(model))
    inputs, targets = pictures(96, seed=1)
    right = (model(inputs, targets).logits.argmax(dim=1) == targets).float().mean().item()
    assert here["curve"][-1][2] == pytest.approx(right)


def test_the_built_in_warm_up_is_trainers_one_step_earlier() -> None:
    """Trainer's first update has the rate 0, here it has 1/W of the peak; what follows the warm-up is the same."""
    from scalestudy.training.loop.learning_rate import make_rate

    built_in = make_rate(the_config(warmup_steps=4, schedule="linear"), SAMPLES, STEPS).plan
    theirs = make_rate(
        the_config(schedule=ScheduleConfig(name=f"{EXAMPLES}.trainer_parts:linear", args={"warm_up": 4})),
        SAMPLES,
        STEPS,
    ).plan
    assert [built_in.at(step) for step in range(4)] == pytest.approx([theirs.at(step + 1) for step in range(4)])
    assert [built_in.at(step) for step in range(4, STEPS)] == pytest.approx([theirs.at(s) for s in range(4, STEPS)])
    assert math.isclose(theirs.at(0), 0.0)
