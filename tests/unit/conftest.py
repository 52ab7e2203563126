"""How xdist shares out these tests: a file's go to one process, and all that need gloo ranks to the same one."""

import pytest


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups for `--dist loadgroup`, so that there is one pool of ranks."""
    for item in items:
        with_ranks = "ranks" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("gloo" if with_ranks else item.nodeid.split("::")[0]))
