"""Command lines that are refused: what each says on standard error, its exit status, and that it writes nothing."""

import shlex
from pathlib import Path

import pytest

from tests.support.approved import approved
from tests.support.in_process import scalestudy
from tests.support.studies import complaint, left_behind, write_spec
from tests.support.synthetic_studies import TINY, folder_of

HERE = Path(__file__).parent
STUDY_COMMANDS = (
    *("status", "report", "recommend", "open", "resume", "ui"),
    *("ui --sync", "run digits-quick --extend", "plan digits-quick --extend"),
)
"""Commands that take a study's folder as their last word."""
NO_FOLDERS = ("", ".", "..", ".yaml", "'two words/'", "'a b'", "'two words/a b'", "-- -x", "ä", "x" * 65)
"""Names that can't name a folder."""
WISHES = (
    *("accuracy 0", "accuracy 95", "accuracy nan", "max-gpus 0", "tolerance -0.1", "tolerance inf"),
    *("price -1", "price nan", "by luck"),
)
JOB = "submit digits-quick --address http://127.0.0.1:9"
PAGES = {
    "A command that is not there": ["rnu digits-quick", "train digits-quick", "data ftch mnist"],
    "A folder that is no study's": [f"{command} runs" for command in STUDY_COMMANDS],
    "A place without a study": [f"{command} empty/latest" for command in STUDY_COMMANDS],
    "The usual places without a study": [f"{command} latest" for command in STUDY_COMMANDS],
    "A place of studies": [
        *("list --storage none", "list --storage runs/tiny", "list --storage ftp://x/y"),
        "plan digits-quick --storage none",
    ],
    "A study without a report, and one without an answer": [
        "open 'runs/a b'",
        "recommend 'runs/a b' --torchrun",
    ],
    "A wish": [f"recommend runs/tiny --{wish.replace(' ', '=')}" for wish in WISHES],
    "The name of a new spec": [f"new {name or repr('')}" for name in NO_FOLDERS],
    "The file of a new spec": ["new taken", "new taken.yaml", "new link", "new none/mine", "new taken.yaml/mine"],
    "A study of the catalogue": ["new mine --from digits-quik", "new mine --from taken.yaml", "new mine --from ''"],
    "A job": [
        *("submit no-such-study --address http://127.0.0.1:9", "submit ../study.yaml --address http://127.0.0.1:9"),
        *(f"{JOB} --env {each}" for each in ("=1", "'a b=1'", "''", "9A", "MY-PASSWORD=hunter2", "MISSING")),
        f"{JOB} --set tracking.uri=http://ann:hunter2@h:5000",
    ],
    "A bench": [
        *("bench max-batc digits-quick", "bench max-batch"),
        *(f"bench max-batch digits-quick --memory={gib}" for gib in ("0", "-1", "nan")),
    ],
}


@pytest.fixture
def place(tmp_path):
    """The current folder, with two studies."""
    place = tmp_path / "here"
    folder_of(place / "runs" / "tiny", TINY)
    folder_of(place / "runs" / "a b", TINY, endings={"*": "failed"})
    for name in ("two words", "empty"):
        (place / name).mkdir()
    (place / "taken.yaml").write_text("kept")
    (place / "link.yaml").symlink_to("elsewhere.yaml")
    write_spec(place.parent)
    return place


def test_refusals(place):
    before, text = left_behind(place.parent), ""
    for heading, lines in PAGES.items():
        text += f"# {heading}\n"
        for line in lines:
            folder = place / "empty" if line.endswith(" latest") else place
            done = scalestudy(*shlex.split(line), cwd=folder, SCALESTUDY_HOME=str(place / "home"))
            said = complaint(done.stderr).replace(str(place), "HERE").rpartition("\n\n")[2]  # without Click's usage
            assert (done.stdout, "hunter2" in said) == ("", False), line
            text += f"$ {line}\n{done.returncode}: {said}"
    assert left_behind(place.parent) == before
    assert (place / "taken.yaml").read_text() == "kept"
    approved(text, HERE / "refusals.txt")
