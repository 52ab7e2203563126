"""Every command and snippet of every page: run, or checked as far as it can be. CONTRIBUTING.md has the convention."""

import pytest

from tests.docs.pages import load, page_names
from tests.support.project_files import project_files
from tests.support.snippet_runs import PageRun
from tests.support.snippet_words import command_problems, commands, is_spec_key, name_problems, span_commands, spec_keys
from tests.support.snippets import comment_spans, names_a_test
from tests.support.studies import REPOSITORY

NOT_RUN = {
    "CONTRIBUTING.md": 1,
    "README.md": 3,
    "docs/cluster.md": 2,
    "docs/install.md": 1,
    "docs/running.md": 4,
    "docs/security.md": 2,
    "docs/start.md": 1,
    "docs/training.md": 1,
    "infra/README.md": 2,
    "infra/docker/README.md": 3,
    "infra/kuberay/README.md": 3,
    "infra/local/README.md": 1,
    "infra/mlflow/README.md": 7,
    "infra/ray/README.md": 4,
}
"""How many blocks of each page are not run. Add none without a test that checks what can be checked of it."""

WITH_BLOCKS = [name for name in page_names() if load(name).blocks]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_the_snippets_of_a_page_do_what_it_says(name, folder_of):
    page = load(name)
    with PageRun(page, *folder_of(page)) as run:
        run.run()


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_commands_name_what_is_there(name):
    """Those that are not run too."""
    blocks = [block for block in load(name).blocks if block.language == "bash" or block.is_session]
    found = [
        f"{name}:{block.line}: {problem}"
        for block in blocks
        for words in commands(block.commands)
        for problem in command_problems(words)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", page_names())
def test_inline_commands_and_spec_keys_are_there(name):
    assert not inline_problems(name, load(name).spans)


@pytest.mark.parametrize("name", project_files("*.yaml"))
def test_commands_and_spec_keys_in_yaml_comments_are_there(name):
    """The headers of the catalogue's studies, and of the template that `new` writes."""
    assert not inline_problems(name, comment_spans((REPOSITORY / name).read_text("utf-8")))


def inline_problems(name, spans):
    """What inline code names that is not there, each with its line."""
    found = []
    for span in spans:
        problems = [problem for words in span_commands(span.text) for problem in command_problems(words)]
        problems += name_problems(span.text)
        problems += [f"{key}: a spec has no such key" for key in spec_keys(span.text) if not is_spec_key(key)]
        found += [f"{name}:{span.line}: `{span.text}`: {problem}" for problem in problems]
    return found


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_what_is_not_run_or_not_compared_is_checked_by_a_test_that_exists(name):
    named = [(block.line, test) for block in load(name).blocks for test in block.instead]
    lost = [f"{name}:{line}: {test}" for line, test in named if not names_a_test(test, REPOSITORY)]
    assert not lost, "\n".join(lost)


def test_nothing_is_left_out_silently():
    counted = {name: sum(block.not_run for block in load(name).blocks) for name in WITH_BLOCKS}
    assert {name: count for name, count in counted.items() if count} == NOT_RUN
