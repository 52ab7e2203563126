"""What would tell more, and what it takes."""

from scalestudy.experiments.analysis.text.to_learn import to_learn
from tests.support.synthetic_studies import summary_of
from tests.support.trials import Law

SMALL = """
name: x
train: {epochs: 8}
targets: {accuracy: [0.8]}
sweep: {num_gpus: [1, 2], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0]}
"""


def test_a_small_study_is_told_what_each_step_takes():
    law = Law(learning=60)
    words = to_learn(summary_of(SMALL, law))
    row = summary_of(SMALL, law)["recommendation"]["choice"]
    step = sum(law.phases(row["num_gpus"], row["batch_size"]).values())
    training = 8 * law.epoch_seconds(row["num_gpus"], row["batch_size"])
    assert words.startswith("To learn more: time 4 and 8 workers, ")
    timed, batch, rate, seeds = words.removesuffix(".").split("; ")
    assert 60 * step < 2
    assert timed.endswith(", 8.00 s")  # two runs of two sizes, of two seconds each
    assert batch.startswith("a third batch size, ")
    assert rate.startswith("a third rate, ")
    assert seeds.startswith(f"4 more seeds of {row['label']}, ")
    for text, seconds in ((batch, training), (seeds, 4 * training)):
        number, unit = text.rpartition(", ")[2].split()
        assert abs(float(number) * {"s": 1, "ms": 1e-3}[unit] / seconds - 1) < 0.02
