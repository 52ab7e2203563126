"""Everything that touches Ray or MLflow: clusters, worker groups, the sweep, tracking and the command line.

`run_study` is the Python way in. It is imported on first use, because Ray unpickles functions from the modules of this
package inside processes that must start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestration.study import StudyResult, run_study

__all__ = ["StudyResult", "run_study"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from orchestration import study

        return getattr(study, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
