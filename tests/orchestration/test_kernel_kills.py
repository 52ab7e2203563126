"""The kernel's count of processes killed for want of memory, as its files have it."""

import pytest

from scalestudy.orchestration.groups import failures
from scalestudy.orchestration.groups.failures import WORDS, killed_by_kernel, kills_in, kills_so_far

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
V2 = "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n"


@pytest.mark.parametrize(
    ("text", "kills"), [(V1, 3), (V2, 3), ("oom 4\n", None), ("oom_kill many\n", None), ("", None)]
)
def test_the_count_is_read_from_both_versions(tmp_path, text, kills):
    (tmp_path / "events").write_text(text)
    assert kills_in(tmp_path / "events") == kills


@pytest.mark.parametrize(
    ("membership", "there", "taken"),
    [
        ("4:memory:/jobs/1\n0::/\n", ["memory/jobs/1/memory.oom_control", "memory/memory.oom_control"], 0),
        ("4:cpu,memory:/jobs/1\n", ["memory/jobs/1/memory.oom_control"], 0),
        ("0::/jobs/1\n", ["jobs/1/memory.events", "memory.events"], 0),
        ("0::/of/the/host\n", ["memory.events"], 0),  # in a container, which sees its own group as the root
        ("4:memory:/of/the/host\n", ["memory/memory.oom_control"], 0),
    ],
)
def test_the_closest_file_is_taken(tmp_path, monkeypatch, membership, there, taken):
    monkeypatch.setattr(failures, "CGROUPS", tmp_path)
    for name in there:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(V2)
    (tmp_path / "self").write_text(membership)
    readable = [file for file in failures._files(tmp_path / "self") if kills_in(file) is not None]
    assert readable[0] == tmp_path / there[taken]


def test_this_process_has_a_count():
    counted = kills_so_far("n1")
    assert counted["node"] == "n1"
    assert counted["kills"] >= 0


def test_a_count_that_has_risen_is_evidence(tmp_path):
    (tmp_path / "events").write_text(V2)
    counts = {
        rank: {"node": "n1", "file": str(tmp_path / "events"), "kills": kills} for rank, kills in enumerate((2, 3))
    }
    assert killed_by_kernel(counts, here="n1") == {0: WORDS}
    (tmp_path / "events").unlink()
    assert killed_by_kernel(counts, here="n1") == {}
