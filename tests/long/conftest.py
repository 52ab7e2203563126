"""What the tests of this folder share."""

from tests.support.ray_session import ray_session

__all__ = ["ray_session"]
