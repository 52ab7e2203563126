"""The documentation as a site: it is built, whole, without a dead link, and asks no other host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from infra.docs import mkdocs_hooks, spec_keys
from tests.support.studies import REPOSITORY

CONFIG = (REPOSITORY / "mkdocs.yml").read_text("utf-8")
PAGES = re.findall(r"^ +- [^#\n]+: (\S+)\.md$", CONFIG, re.MULTILINE)
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}


class Fetched(HTMLParser):
    """Collects the addresses that a browser asks for when it shows a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(FETCHED.get(tag, ""))
        if address:
            self.addresses.append(address)


def outside(text: str) -> list[str]:
    """What a page, or a style sheet, asks other hosts for."""
    style = re.findall(r"(?:url\(|@import )['\"]?([^'\")\s]+)", text)
    addresses = [*Fetched(text).addresses, *style]
    return [address for address in addresses if re.match(r"(https?:)?//", address)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.slow
def test_every_page_of_the_navigation_is_there(site):
    assert len(PAGES) > 20
    names = [re.sub(r"(^|/)README$", r"\1index", page) for page in PAGES]
    missing = [name for name in names if not (site / f"{name}.html").is_file()]
    assert not missing


@pytest.mark.slow
def test_no_page_asks_another_host_for_anything(site):
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    found = {str(file.relative_to(site)): asked for file in files if (asked := outside(file.read_text("utf-8")))}
    assert len(files) > len(PAGES)
    assert not found


@pytest.mark.slow
def test_the_reference_shows_what_a_user_imports(site):
    page = (site / "api.html").read_text("utf-8")
    for name in (
        "scalestudy.orchestration.study.study.run_study",
        "scalestudy.training.data.splits.Splits",
        "scalestudy.training.gradient_sync.base.GradientSync.synchronise",
        "scalestudy.training.losses.cross_entropy",
        "scalestudy.training.loop.train.train",
        "scalestudy.experiments.analysis.answers.summary.summarise",
        "scalestudy.experiments.analysis.laws.estimate.Estimate",
        "scalestudy.experiments.analysis.answers.verdicts.phase_share",
        "scalestudy.training.models.common.initialise",
        "scalestudy.training.task.ShardLoss",
        "scalestudy.training.records.EpochRecord",
        "scalestudy.orchestration.base.errors.RequestError",
    ):
        assert f'id="{name}"' in page
    assert "a spec file, or the name of a study of the catalogue" in page  # a parameter's text, not only its name


@pytest.mark.slow
def test_a_link_to_a_source_leads_to_a_page_that_shows_it(site):
    page = (site / "formulas.html").read_text("utf-8")
    assert 'href="source/experiments/analysis/measures/scaling.py.html"' in page
    assert "scaling_answer" in (site / "source/experiments/analysis/measures/scaling.py.html").read_text("utf-8")


SITE = {
    "docs/running.md": "running.md",
    "infra/ray/README.md": "infra/ray/README.md",
    "docs/results/a.md": "results/a.md",
    "training/loop/train.py": "source/training/loop/train.py.md",
    "README.md": "index.md",
}


@pytest.mark.parametrize(
    ("page", "link", "turned"),
    [
        ("running.md", "../infra/ray/README.md#x", "infra/ray/README.md#x"),
        ("infra/ray/README.md", "../../docs/running.md", "../../running.md"),
        ("results/a.md", "../../training/loop/train.py", "../source/training/loop/train.py.md"),
        ("running.md", "results/a.md", "results/a.md"),
        ("running.md", "../README.md", "index.md"),
        ("running.md", "#in-a-page", "#in-a-page"),
        ("running.md", "https://elsewhere/a.md", "https://elsewhere/a.md"),
        ("running.md", "../nowhere.md", "../nowhere.md"),  # stays, and MkDocs complains
    ],
)
def test_links_are_turned_to_where_the_site_has_their_targets(page, link, turned):
    assert mkdocs_hooks.turned(f"[a]({link})", page, SITE) == f"[a]({turned})"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("- in place of\n  108. They are", "- in place of\n  108\\. They are"),  # else a number begins another item
        *[(code, code) for code in ("`[a](../infra/ray/README.md)`", "```text\n  10. b\n```")],
    ],
)
def test_a_number_that_begins_a_line_begins_no_item_and_code_is_left_as_it_is(text, shown):
    linked = SimpleNamespace(src_uri="infra/ray/README.md", generated_by="mkdocs_hooks")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="running.md"))
    assert mkdocs_hooks.on_page_markdown(text, page, [linked]) == shown


def test_the_table_of_keys_is_that_of_the_template():
    page = spec_keys.PAGE.read_text("utf-8")
    assert spec_keys.filled(page) == page, "write it anew: python infra/docs/spec_keys.py"
    assert "| `train.epochs` | `10` | passes over the training set" in page
    with pytest.raises(ValueError, match="needs the lines"):
        spec_keys.filled("a page without marks")
