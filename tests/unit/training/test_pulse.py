"""What a training says of itself: stages, their counters, and what is compiled."""

from scalestudy.training.pulse import Pulse


def told(pulse):
    return pulse.stage.activity, pulse.stage.number, pulse.stage.count


def test_a_stage_inside_another_leaves_that_as_it_was():
    pulse = Pulse()
    assert told(pulse) == ("loading", 1, 0)
    pulse.turn_to("training")
    pulse.stage.count += 5
    with pulse.during("checkpointing"):
        assert told(pulse) == ("checkpointing", 3, 0)
    assert told(pulse) == ("training", 2, 5)
    pulse.turn_to("training")
    assert told(pulse) == ("training", 4, 0), "no number is given twice"


def test_a_model_compiles_for_each_shape_once():
    pulse = Pulse()
    with pulse.compiling("training", 32):
        assert told(pulse)[0] == "loading", "this one compiles nothing"
    pulse.will_compile()
    seen = []
    for shape in (("training", 32), ("training", 32), ("training", 7), ("evaluating", 32)):
        with pulse.compiling(*shape):
            seen.append(pulse.stage.activity)
    assert seen == ["compiling", "loading", "compiling", "compiling"]
