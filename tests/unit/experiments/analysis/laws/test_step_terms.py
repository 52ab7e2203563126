"""The law of a step's time as mathematics, and what places can tell of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.laws.step_terms import Place, told_apart
from tests.support.known_laws import Constants

LAW = Constants(alpha_c=0.004, beta_c=5e-5, launch=0.0026, linear=0.0004, gamma=1.5)
CONSTANTS = st.builds(
    Constants,
    alpha_c=st.floats(1e-5, 1e-1),
    beta_c=st.floats(1e-7, 1e-3),
    delay_c=st.floats(0, 1e-2),
    delay_m=st.floats(0, 1e-4),
    ring=st.floats(1e-5, 1e-1),
    levels=st.floats(1e-5, 1e-1),
    gamma=st.floats(1, 10),
)


def test_the_formula():
    # T_grad = 0.004 + 5e-5 · 100 = 0.009; T_sync = 0.0026 + 0.0004 · 3 = 0.0038
    assert LAW.gradient_seconds(100) == pytest.approx(0.009)
    assert LAW.sync_seconds(4) == pytest.approx(0.0038)
    assert LAW.sync_seconds([1, 2, 3]) == pytest.approx([0, 0.003, 0.0034])
    # (0.009^1.5 + 0.0038^1.5)^(2/3) = (8.5381e-4 + 2.3425e-4)^(2/3) = 0.010579
    assert LAW.step_seconds(4, 100) == pytest.approx(0.010579, abs=1e-6)
    assert LAW.step_seconds(1, 100) == pytest.approx(0.009)
    assert replace(LAW, gamma=1.0).step_seconds(4, 100) == pytest.approx(0.0128)
    # 4 workers of 2 nodes, 2 each: 0.003 within, ring of nodes 0.01/2, a level 0.002
    across = replace(LAW, node_ring=0.01, node_levels=0.002)
    assert across.sync_seconds(4, 2) == pytest.approx(0.003 + 0.005 + 0.002)
    # H(4) − 1 = 1/2 + 1/3 + 1/4 = 1.08333 delays of 0.001 + 1e-5 · 100 = 0.002
    late = Constants(alpha_c=0.004, beta_c=5e-5, delay_c=0.001, delay_m=1e-5)
    assert late.step_seconds(4, 100) == pytest.approx(0.009 + 0.0021667, rel=1e-4)


@given(CONSTANTS, st.integers(1, 64), st.floats(1, 1e4))
def test_a_step_takes_at_least_its_longest_part_and_at_most_both(law, workers, share):
    gradient = replace(law, ring=0.0, levels=0.0).step_seconds(workers, share)
    sync = law.sync_seconds(workers)
    step = law.step_seconds(workers, share)
    assert max(gradient, sync) * (1 - 1e-9) <= step <= (gradient + sync) * (1 + 1e-9)


def test_terms_are_told_apart_by_several_numbers_of_workers():
    def names(*workers):
        return told_apart(
            [Place(num_gpus=k, per_worker_batch=8.0, nodes=nodes, seconds=(1.0,)) for k, nodes in workers]
        )

    compute = ("alpha_c", "beta_c")
    assert names((1, 1)) == compute
    assert names((1, 1), (4, 1)) == (*compute, "launch")
    within = (*compute, "delay_c", "delay_m", "launch", "ring", "levels", "linear")
    assert names((1, 1), (2, 1), (4, 1)) == within
    assert names((1, 1), (2, 1), (4, 1), (8, 2)) == (*within, "node_launch")
