"""Everything that touches Ray or MLflow: clusters, worker groups, the sweep, tracking and the command line.

`run_study` is the Python way in. It is imported on first use, because Ray unpickles functions from the modules of this
package inside processes that must start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalestudy.orchestration.study.running import StudyResult
    from scalestudy.orchestration.study.study import run_study

    __version__: str

__all__ = ["StudyResult", "__version__", "run_study"]

FROM_A_FOLDER = "0+unknown"
"""The version where these packages are not installed but lie in a folder, as on a cluster where a job took them."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in __all__:
        from scalestudy.orchestration.study import study

        return getattr(study, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("scalestudy")
    except metadata.PackageNotFoundError:
        return FROM_A_FOLDER
