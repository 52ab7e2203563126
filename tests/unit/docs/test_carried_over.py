"""Trainings that others write as a loop: as an example of ours they come to the same metric, in the same order."""

import math
import statistics
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from docs.examples import conv_net, perceptron, small_gpt
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.study.trials import train_config
from scalestudy.training.config import OptimizerConfig, ScheduleConfig, TrainConfig
from scalestudy.training.data.builtin import load_digits
from scalestudy.training.data.splits import Splits
from scalestudy.training.loop.train import train
from tests.support.pages import blocks, page_text
from tests.support.synthetic_studies import spec_of
from tests.support.training.helpers import ALONE, make_config

SEEDS = range(5)


def same_as_by_hand(config: TrainConfig, by_hand: Callable[[float, int], float], rates: tuple[float, float]) -> None:
    """Both rates: the mean over seeds lies within the spread of the loop's, and the better rate is the same."""
    means: dict[str, list[float]] = {"ours": [], "by hand": []}
    for rate in rates:
        configs = [config.replace(learning_rate=rate, seed=seed) for seed in SEEDS]
        trained = [train(each, ALONE).records[-1].test_metric for each in configs]
        written = [by_hand(rate, seed) for seed in SEEDS]
        spread = statistics.stdev(trained) + statistics.stdev(written)
        means["ours"].append(statistics.mean(trained))
        means["by hand"].append(statistics.mean(written))
        assert abs(means["ours"][-1] - means["by hand"][-1]) < spread, (rate, trained, written)
    ours, hand = means.values()
    assert (ours[0] < ours[1]) == (hand[0] < hand[1])
    assert abs(hand[0] - hand[1]) > 0.1  # there is an order


STEPS, BATCH, FLOOR, WARM_UP = 100, 32, 0.1, 0.06


def gpt_by_hand(rate: float, seed: int) -> float:
    """Warm-up, then cosine to a tenth; AdamW with decay of matrices alone. Returns bits a character."""
    torch.manual_seed(seed)
    text, test = small_gpt.windows(4000, 0), small_gpt.windows(400, 1)
    model = small_gpt.build(len(small_gpt.CHARACTERS))
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=rate, betas=(0.9, 0.95)
    )
    first = round(WARM_UP * STEPS)
    for step, chosen in zip(range(STEPS), torch.randperm(len(text)).split(BATCH), strict=False):
        progress = max(step - first, 0) / (STEPS - first)
        share = (step + 1) / first if step < first else FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * progress)) / 2
        for group in optimizer.param_groups:
            group["lr"] = rate * share
        batch = text[chosen]
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return F.cross_entropy(model(test[:, :-1]).flatten(0, 1), test[:, 1:].flatten()).item() / math.log(2)


@pytest.mark.chaos
def test_a_small_gpt() -> None:
    where = "docs.examples.small_gpt"
    config = make_config(
        model=f"{where}:build",
        model_args={},
        data=f"{where}:load",
        data_args={},
        task=f"{where}:NextCharacter",
        metric="bits_per_character",
        metric_mode="min",
        batch_size=BATCH,
        epochs=None,
        tokens=STEPS * BATCH * small_gpt.LENGTH,
        warmup_share=WARM_UP,
        schedule=ScheduleConfig(name="cosine", args={"floor": FLOOR}),
        optimizer=OptimizerConfig(name=f"{where}:with_decay", args={"weight_decay": 0.1}),
    )
    same_as_by_hand(config, gpt_by_hand, (0.0003, 0.003))


def accuracy(model: nn.Module, splits: Splits) -> float:
    model.eval()
    with torch.no_grad():
        return (model(splits.test_inputs).argmax(dim=1) == splits.test_targets).float().mean().item()


EPOCHS, WIDTH = 6, 64


def perceptron_by_hand(rate: float, seed: int) -> float:
    """Plain SGD over shuffled batches. Returns the accuracy."""
    torch.manual_seed(seed)
    splits = load_digits(None, image_size=8)
    model = perceptron.build(10, 1, size=8, width=WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(splits.train_inputs)).split(BATCH):
            loss = F.cross_entropy(model(splits.train_inputs[chosen]), splits.train_targets[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return accuracy(model, splits)


@pytest.mark.slow
def test_a_perceptron_with_dropout() -> None:
    config = make_config(
        model="docs.examples.perceptron:build",
        model_args={"size": 8, "width": WIDTH},
        data="digits",
        data_args={"image_size": 8},
        batch_size=BATCH,
        epochs=EPOCHS,
        optimizer=OptimizerConfig(name="sgd", momentum=0.9),
    )
    same_as_by_hand(config, perceptron_by_hand, (0.002, 0.05))


CHANNELS, HIDDEN, SIZE = (4, 8), 32, 14


def conv_net_by_hand(rate: float, seed: int) -> float:
    """Adadelta and StepLR, each batch of 64 from a DataLoader. Returns the accuracy."""
    torch.manual_seed(seed)
    splits = load_digits(None, image_size=SIZE)
    model = conv_net.ConvNet(10, 1, CHANNELS, HIDDEN, size=SIZE)
    train_set = TensorDataset(splits.train_inputs, splits.train_targets)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=rate)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for _ in range(EPOCHS):
        for inputs, targets in DataLoader(train_set, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            loss = F.nll_loss(F.log_softmax(model(inputs), dim=1), targets)
            loss.backward()
            optimizer.step()
        scheduler.step()
    return accuracy(model, splits)


@pytest.mark.chaos
def test_a_convolutional_network_as_its_page_has_it() -> None:
    """The page's study, on a smaller network, the digits and fewer epochs."""
    (text,) = [block.text for block in blocks(page_text("docs/coming-from.md"), "yaml") if "name: mnist" in block.text]
    config = train_config(make_plan(spec_of(text)).trials[0], None).replace(
        model="docs.examples.conv_net:ConvNet",
        model_args={"channels": CHANNELS, "hidden": HIDDEN, "size": SIZE},
        data="digits",
        data_args={"image_size": SIZE},
        epochs=EPOCHS,
    )
    assert config.batch_size == 64
    same_as_by_hand(config, conv_net_by_hand, (0.2, 1.0))
