"""These tests share one Ray: what starts another stands in tests/long."""

import ast
from pathlib import Path

import pytest

from scalestudy.orchestration.cluster import connection as clusters

OWN_CLUSTERS = {"subprocess", "tests.support.drivers.Driver", "tests.support.programs", "tests.support.raylets"}
"""What starts processes; `tests.support.in_process` has the command line without one."""


def test_a_second_cluster_is_refused(cluster, monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(AssertionError, match="tests/ray share one Ray"):
        clusters.connect("local")


def imported(file):
    """Modules that a file imports, and names from them."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_nothing_here_starts_a_process_with_a_cluster():
    files = [file for file in Path(__file__).parent.glob("test_*.py") if file != Path(__file__)]
    assert len(files) > 5
    assert {file.name: found for file in files if (found := OWN_CLUSTERS.intersection(imported(file)))} == {}
