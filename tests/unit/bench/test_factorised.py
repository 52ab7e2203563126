"""What `make bench BENCH=factorised` compares; the studies themselves are proved by its `--small`."""

from types import SimpleNamespace

import pytest

from scalestudy.experiments.analysis import recommend
from scalestudy.orchestration.study.folders import read_spec
from tests.bench.factorised import WAYS, _choice
from tests.support.synthetic_studies import folder_of, study_of, summary_of
from tests.support.trials import Law

TEXT = (
    "name: x\ntrain: {epochs: 8}\ntargets: {accuracy: [0.8]}\n"
    "sweep: {num_gpus: [1, 2], batch_size: [32, 64], learning_rate: [0.1, 0.2], seed: [0, 1]}"
)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains_to_its_last_epoch(way):
    name, overrides = WAYS[way]
    assert not read_spec(name, overrides).stops_at_target


def test_a_choice_is_judged_by_what_the_grid_has_measured(tmp_path):
    law = Law(learning=130, noise=0.05)
    done = SimpleNamespace(folder=folder_of(tmp_path / "x", TEXT, law).path, summary=summary_of(TEXT, law))
    fastest = recommend(*study_of(TEXT, law))["fastest"]
    assert fastest["seconds"] != fastest["measured_seconds"]
    assert _choice(done, done, 0.8)[1] == f"{fastest['measured_seconds']:.2f} s"
