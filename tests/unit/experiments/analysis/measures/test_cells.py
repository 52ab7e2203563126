"""How combinations of parameters are named."""

from scalestudy.experiments.analysis.measures.cells import combination_of


def test_a_combination_is_named_as_in_the_summary():
    params = {"num_gpus": 1, "batch_size": 2, "learning_rate": 0.1, "train.gradient_sync": "naive"}
    assert combination_of(params) == "gradient_sync=naive"
    assert combination_of({"num_gpus": 1, "batch_size": 2}) == ""
