"""Speed-up and efficiency."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.measures.intervals import scatter
from scalestudy.experiments.analysis.measures.scaling import (
    SpeedupIntervals,
    efficiency,
    find_base,
    scaling_answer,
    scaling_kind,
    scaling_part,
    speedup,
)
from tests.support.synthetic_studies import summary_of
from tests.support.trials import Law


def row(num_gpus, batch_size, learning_rate=0.1, seconds=1.0, **rest):
    params = {"num_gpus": num_gpus, "batch_size": batch_size, "learning_rate": learning_rate, **rest}
    part = {"value": seconds} if seconds else {"value": None, "why": "no trial finished"}
    return {"params": params, "label": f"{num_gpus}/{batch_size}/{learning_rate}", "epoch_seconds": part}


def test_the_books_own_numbers():
    # ResNet-18, MXNet edition: 13.0 s on one GPU, 6.7 s on two: 13.0 / 6.7 = 1.9403, half of it 0.9701
    assert speedup(6.7, 13.0) == pytest.approx(1.9403, abs=1e-4)
    assert efficiency(speedup(6.7, 13.0), 2) == pytest.approx(0.9701, abs=1e-4)


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        (row(2, 256), "strong"),
        (row(2, 512), "weak"),
        (row(2, 512, 0.2), "neither"),  # the book's: batch and rate changed together
        (row(2, 256, 0.2), "neither"),
        (row(2, 300), "neither"),
    ],
)
def test_kinds_of_scaling(params, kind):
    assert scaling_kind(params["params"], row(1, 256)["params"]) == kind


def test_the_base_is_strong_before_weak_before_near():
    rows = [row(1, 64), row(1, 128), row(1, 128, 0.2), row(1, 1024)]
    assert find_base(row(2, 128), rows) is rows[1]
    assert find_base(row(2, 2048), rows) is rows[3]
    assert find_base(row(2, 130), rows) is rows[1]
    assert find_base(row(2, 128, sync="naive"), rows) is None


def test_without_a_timed_base_there_is_a_why():
    strong = scaling_part(row(2, 256), [row(1, 256, seconds=None), row(1, 128)])
    assert (strong["speedup"], strong["efficiency"]) == (None, None)
    assert "no trial finished" in strong["why"]
    assert "no cell of one worker" in scaling_part(row(2, 256), [row(2, 256)])["why"]
    assert scaling_part(row(1, 256, seconds=None), [])["speedup"] is None


@given(st.floats(0.01, 1e4), st.floats(0.01, 1e4), st.integers(1, 512))
def test_speedup_times_time_is_the_base(seconds, base, workers):
    assert speedup(seconds, base) * seconds == pytest.approx(base)
    assert efficiency(speedup(base / workers, base), workers) == pytest.approx(1)


def test_speedup_of_synthetic_trials_is_the_laws():
    law = Law(noise=0)
    text = "name: x\nsweep: {num_gpus: [1, 2, 4], batch_size: [32, 128], learning_rate: [0.1, 0.2]}"
    for cell in summary_of(text, law)["cells"]:
        workers, batch = cell["params"]["num_gpus"], cell["params"]["batch_size"]
        truth = law.epoch_seconds(1, batch) / law.epoch_seconds(workers, batch)
        assert cell["speedup"] == pytest.approx(truth)
        assert cell["efficiency"] == pytest.approx(truth / workers)
        assert cell["epoch_seconds"]["value"] == pytest.approx(law.epoch_seconds(workers, batch))


def test_rows_say_whether_their_workers_are_slower_than_one():
    rows = [row(1, 256, seconds=2.4), row(2, 256, seconds=2.5)]
    assert scaling_part(rows[1], rows)["retrograde"]
    assert not scaling_part(row(2, 256, seconds=1.4), rows)["retrograde"]
    for alone in (
        scaling_part(rows[0], rows),
        scaling_part(row(2, 256), []),
        scaling_part(row(2, 256, seconds=None), rows),
    ):
        assert alone["retrograde"] is None


class Book(Law):
    """Seconds an epoch as a notebook prints them, by number of GPUs."""

    def phases(self, num_gpus, batch_size):
        seconds = {1: self.fixed, 2: self.sync}[num_gpus] / self.steps(batch_size)
        return {"data": 0.0, "forward_backward": seconds, "gradient_sync": 0.0, "optimizer": 0.0}


@pytest.mark.parametrize(
    ("one", "two", "batches", "rates", "kind"),
    [
        (2.4, 2.5, (256, 256), (0.2, 0.2), "strong"),  # LeNet, en 2022
        (2.7, 3.6, (256, 256), (0.2, 0.2), "strong"),  # LeNet, zh 2023
        (12.2, 7.4, (256, 512), (0.1, 0.2), "neither"),  # ResNet-18, zh 2023
        (14.1, 9.2, (256, 512), (0.1, 0.2), "neither"),  # ResNet-18, en 2022
        (5.8, 8.7, (256, 512), (0.1, 0.2), "neither"),  # ResNet-18, 2026
        (2.6, 2.4, (256, 512), (0.2, 0.3), "neither"),  # LeNet with 512 on two
    ],
)
def test_the_book_is_slower_with_two_gpus_where_it_was(one, two, batches, rates, kind):
    points = ", ".join(
        f"{{num_gpus: {count}, batch_size: {batch}, learning_rate: {rate}}}"
        for count, batch, rate in zip((1, 2), batches, rates, strict=True)
    )
    law = Book(samples=60_000, fixed=one, sync=two)
    _, found = summary_of(f"name: x\ntrain: {{epochs: 10}}\nsweep: {{points: [{points}]}}", law)["cells"]
    assert found["scaling"] == kind
    assert found["speedup"] == pytest.approx(one / two)
    assert found["retrograde"] is (two > one)


PARAMS = st.tuples(st.sampled_from([1, 1, 2, 4]), st.sampled_from([32, 64, 96, 128, 512]), st.sampled_from([0.1, 0.2]))


@given(st.lists(PARAMS, max_size=25), PARAMS)
def test_a_base_is_found_without_looking_at_every_row(others, wanted):
    rows, looked_for = [row(*params) for params in sorted(others)], row(*wanted)
    rank = {"strong": 0, "weak": 1, "neither": 2}

    def distance(other):
        batch = abs(looked_for["params"]["batch_size"] - other["params"]["batch_size"])
        return rank[scaling_kind(looked_for["params"], other["params"])], batch

    singles = [other for other in rows if other["params"]["num_gpus"] == 1]
    expected = min(singles, key=distance, default=None)
    found = find_base(looked_for, rows)
    assert (found is None) == (expected is None)
    assert found is None or distance(found) == distance(expected)


def drawn(gains, noise, runs, generator):
    """Timings of a study with one worker and two, runs scattering. gains: the true ratio at each batch size."""
    rows = []
    for place, gain in enumerate(gains):
        for workers in (1, 2):
            times = (1.0 if workers == 1 else 1 / gain) * np.exp(generator.normal(0, noise, runs))
            made = row(workers, 32 * 2**place, seconds=statistics.median(times))
            rows.append({**made, "scatter": {"seconds": scatter(times)}})
    return [{**each, **scaling_part(each, rows)} for each in rows]


def answered(gains, noise, runs, generator):
    return scaling_answer(drawn(gains, noise, runs, generator)).topic


def test_the_interval_of_a_speed_up():
    rows = [{**row(1, 32, seconds=1.0), "scatter": {"seconds": scatter(np.exp([-0.1, 0.1]))}}]
    rows.append({**row(2, 32, seconds=0.5), "scatter": {"seconds": scatter(0.5 * np.exp([-0.1, 0.1]))}})
    two = {**rows[1], **scaling_part(rows[1], rows)}
    # each place: standard deviation of ±0.1 is 0.1√2; of the ratio of two means of two runs it is 0.1√2 too.
    # 95 % quantile of t with 2 degrees of freedom: 2.919986. 2 · exp(±2.919986 · 0.141421) = 2 · exp(±0.412948)
    assert SpeedupIntervals(rows).of(two) == pytest.approx((1.323392, 3.022537), rel=1e-5)
    once = [{**each, "scatter": {"seconds": scatter([1.0])}} for each in rows]
    assert SpeedupIntervals(once).of(two) is None
    assert SpeedupIntervals([rows[0], {**rows[1], "scatter": {"seconds": scatter([])}}]).of(two) is None


@pytest.mark.parametrize("runs", [2, 3, 8])
def test_intervals_of_speed_ups_hold_the_truth(runs):
    generator, held = np.random.default_rng(11), []
    for _ in range(400):
        gain = generator.uniform(0.5, 2)
        rows = drawn([gain, gain], generator.uniform(0.02, 0.3), runs, generator)
        low, high = SpeedupIntervals(rows).of(rows[1])
        held.append(low <= gain <= high)
    # of 400 draws at 90 %, three standard deviations are 4.5 %; a median of three scatters less than is reckoned with
    assert 0.855 <= statistics.fmean(held) <= 0.985


@pytest.mark.parametrize("runs", [2, 3, 8])
@pytest.mark.parametrize("gains", [[1.0], [1.0, 1.0, 1.0]])
def test_equal_speeds_are_seldom_told_apart(runs, gains):
    generator = np.random.default_rng(7)
    topics = [answered(gains, generator.uniform(0.05, 0.2), runs, generator) for _ in range(400)]
    claimed = sum("about as fast" not in topic for topic in topics) / 400
    # of 400 draws at 10 %, three standard deviations are 4.5 %; a median of three scatters less than is reckoned with
    assert 0.02 <= claimed <= 0.145


@pytest.mark.parametrize(("gain", "words"), [(1.5, "faster than one"), (1 / 1.5, "slower than one")])
def test_speeds_that_differ_are_told_apart(gain, words):
    generator = np.random.default_rng(8)
    topics = [answered([gain] * 3, 0.1, 4, generator) for _ in range(200)]
    assert sum(topic == f"Two workers were {words} at the same batch" for topic in topics) >= 180


def test_what_is_faster_at_some_batch_sizes_only():
    generator = np.random.default_rng(9)
    some = "but within noise at some batch sizes"
    assert answered([2.0, 1.0], 0.01, 5, generator).endswith(f"faster than one at the same batch, {some}")
    assert answered([2.0, 0.5], 0.01, 5, generator).endswith("not always faster than one at the same batch")
    assert answered([0.5, 1.0], 0.01, 5, generator).endswith(f"slower than one at the same batch, {some}")
    assert answered([2.0], 0.01, 1, generator).endswith("about as fast as one at the same batch, within noise")


def test_the_answer_in_figures():
    text = "name: x\nsweep: {num_gpus: [1, 2], batch_size: [32], seed: [0, 1]}"
    # two runs a place, equal: the interval has no width.
    # 0.0057 s a step with one worker (0.0002 + 0.002 + 0.0032 + 0.0003), 0.0053 with two
    assert summary_of(text, Law(noise=0))["scaling"]["words"] == (
        "Two workers were faster than one at the same batch: 1.08× (1.08 to 1.08) at batch 32, efficiency 0.54."
    )
    once = summary_of("name: x\nsweep: {num_gpus: [1, 2], batch_size: [32]}", Law(noise=0))["scaling"]["words"]
    assert once == (
        "Two workers were about as fast as one at the same batch, within noise: 1.08× at batch 32, efficiency "
        "0.54. Each was timed once: a second run would tell more."
    )
