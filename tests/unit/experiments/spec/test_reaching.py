"""When a target is reached."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.spec.reaching import arrival, meets


def test_as_much_as_the_target_is_enough_and_what_is_no_number_is_not():
    assert (meets(0.5, 0.5, "max"), meets(0.5, 0.5, "min")) == (True, True)
    assert (meets(0.6, 0.5, "max"), meets(0.6, 0.5, "min")) == (True, False)
    assert not any(meets(math.nan, 0.5, mode) for mode in ("max", "min"))


@pytest.mark.parametrize(
    ("values", "place"),
    [([], None), ([0.9], None), ([0.9, 0.4, 0.9], None), ([0.4, 0.5, 0.5], 1), ([0.9, 0.4, 0.6, 0.7, 0.1], 2)],
)
def test_the_first_of_two_in_a_row_reaches_it(values, place):
    assert arrival(values, 0.5, "max") == place
    assert arrival([-value for value in values], -0.5, "min") == place


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0, 1), st.floats(0, 1))
def test_a_training_that_ends_there_has_reached_every_easier_target_no_later(values, first, second):
    easy, hard = sorted((first, second))
    place = arrival(values, hard, "max")
    if place is not None:
        seen = values[: place + 2]  # with the evaluation that confirms it
        assert arrival(seen, hard, "max") == place
        assert arrival(seen, easy, "max") == arrival(values, easy, "max") <= place
