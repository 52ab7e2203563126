"""Fixtures of the training tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.gloo import GlooPool, gloo_pool


@pytest.fixture(scope="session")
def ranks() -> Iterator[GlooPool]:
    """Four gloo ranks for the whole session."""
    with gloo_pool(4) as pool:
        yield pool
