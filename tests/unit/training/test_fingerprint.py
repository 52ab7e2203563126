"""What two runs of a study are compared by: the user's files, and what is known of the data."""

import json
from dataclasses import asdict, replace

from scalestudy.training.fingerprint import DataFacts, Fingerprint, data_key

FACTS = DataFacts(train=600, test=100, formats="f", shapes="s", examples="e")
OWN = {"model": "mine:build", "data": "mine:load", "data_args": {}, "loss": "mse"}
BEFORE = Fingerprint(code={"mine": {"mine.py": "1", "glue.py": "2"}}, data={"mine:load": FACTS})


def changes(*, code=None, **facts):
    now = replace(BEFORE, data={"mine:load": replace(FACTS, **facts)})
    return replace(now, code=code or now.code).changes_since(BEFORE)


def test_a_change_is_named_by_files_and_by_sizes():
    assert changes() == []
    assert changes(code={"mine": {"mine.py": "1", "glue.py": "3"}}) == ["glue.py"]
    assert changes(code={"mine": {"mine.py": "0", "new.py": "4"}}) == ["glue.py", "mine.py", "new.py"]
    assert changes(train=800, examples="other") == ["data: 600 -> 800 examples"]
    assert changes(train=800, test=90) == ["data: 600 -> 800 examples", "data: 100 -> 90 test examples"]
    assert changes(examples="other") == ["data: other examples"]
    assert changes(formats="other", examples="other") == ["data: examples of another form"]


def test_only_what_both_know_is_compared():
    assert changes(train=None, examples=None) == []
    assert Fingerprint().changes_since(BEFORE) == BEFORE.changes_since(Fingerprint()) == []
    more = replace(BEFORE, code={**BEFORE.code, "lions": {"lions.py": "1"}})
    assert more.changes_since(BEFORE) == [], "an extended spec names more"


def test_a_trial_has_a_digest_of_each_module_and_data_set_that_it_names():
    own = BEFORE.digests(OWN, {"schedule": "cosine"})
    assert own.keys() == {"mine", "mine:load"}
    edited = Fingerprint(code={"mine": {**BEFORE.code["mine"], "glue.py": "3"}}, data=BEFORE.data)
    found = edited.digests(OWN, {})
    assert (found["mine"] != own["mine"], found["mine:load"]) == (True, own["mine:load"])
    built_in = {**OWN, "model": "lenet", "data": "digits"}
    assert BEFORE.digests(built_in, {"optimizer": {"name": "lions:Lion"}}) == {}


def test_a_data_set_is_another_one_with_other_arguments():
    assert data_key({"data": "digits", "data_args": {"image_size": 28}}) is None
    keys = [data_key({**OWN, "data_args": args}) for args in ({}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2})]
    assert keys[0] == "mine:load"
    assert keys[1] == keys[2] != keys[3]


def test_two_readings_agree_on_what_both_have_found():
    assert FACTS.agreed(FACTS) == FACTS
    assert FACTS.agreed(replace(FACTS, examples="x")) == replace(FACTS, examples=None)
    assert DataFacts.from_plain({**asdict(FACTS), "of_a_newer_version": 1}) == FACTS


def test_it_comes_back_from_the_journal():
    assert Fingerprint.from_plain(json.loads(json.dumps(BEFORE.to_plain()))) == BEFORE
    assert BEFORE
    assert not Fingerprint()
