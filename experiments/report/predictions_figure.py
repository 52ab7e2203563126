"""The time to the target over num_gpus: predicted, and measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.measures.cells import combination_of
from scalestudy.experiments.analysis.measures.parts import Row, Summary, part_of, present, why_of
from scalestudy.experiments.analysis.measures.units import FLAGGED, plural, seconds_text, three_digits
from scalestudy.experiments.report.charts import (
    Axis,
    Chart,
    Drawing,
    Point,
    Series,
    Upright,
    between,
    not_drawn,
    places_of,
    sentences,
)
from scalestudy.experiments.report.flags import flag_mark, flag_words


def predictions_figure(summary: Summary) -> Drawing:
    """Return seconds to the target over num_gpus, predicted and measured, on log axes."""
    name, title = "predictions", "Beyond the cluster at hand"
    part = part_of(summary, "predictions")
    rows = valid_rows(part)
    if not rows:
        lack = part.get("breaks_at") if present(part) else part
        return not_drawn(name, title, why_of(lack) if lack else "no size can be predicted")
    measured, flags = soonest_measured(summary, part), {row["label"]: row for row in summary["cells"]}
    uprights = _uprights(rows, part.get("breaks_at"))
    sizes = [row["num_gpus"] for row in rows] + [row["params"]["num_gpus"] for row in measured]
    numbers = Chart(
        x=Axis(label="workers", log=True, ticks=sorted({*sizes, *(each.at for each in uprights)})),
        y=Axis(label=f"training seconds to {part['target']:g}", log=True),
        series=[*_predicted(rows, part), *_measured(measured, summary)],
        uprights=uprights,
    )
    caption = sentences(_caption(part, rows), flag_words([flags[row["label"]] for row in measured]))
    return Drawing(name=name, title=f"Time to {part['target']:g} beyond the cluster", caption=caption, numbers=numbers)


def valid_rows(part: Mapping[str, Any]) -> list[Row]:
    """Return the sizes with a predicted time, fewest workers first."""
    rows = part["rows"] if present(part) else []
    known = [row for row in rows if row["valid"] and row["seconds_to_target"] is not None]
    return sorted(known, key=lambda row: float(row["num_gpus"]))


def soonest_measured(summary: Summary, part: Mapping[str, Any]) -> list[Row]:
    """Return the soonest measured cell of each num_gpus, for the same target and combination."""
    soonest: dict[int, Row] = {}
    for row in summary["time_to_target"]:
        alike = row["target"] == part["target"] and combination_of(row["params"]) == part.get("of", "")
        size = row["params"]["num_gpus"]
        if alike and row["seconds"] is not None and row["seconds"] < soonest.get(size, {"seconds": 1e300})["seconds"]:
            soonest[size] = row
    return [soonest[size] for size in sorted(soonest)]


def _predicted(rows: Sequence[Row], part: Mapping[str, Any]) -> list[Series]:
    """Return the prediction with its band: solid within the measured sizes, dotted and hollow beyond."""
    mark = f" {FLAGGED}" if part.get("flagged") else ""
    within = [row for row in rows if not row["beyond"]]
    beyond = [row for row in rows if row["beyond"]]
    banded = [row for row in rows if row["low"] is not None and row["high"] is not None]
    series = []
    if len(banded) > 1:
        area = [
            Point(x=row["num_gpus"], y=row["seconds_to_target"], low=row["low"], high=row["high"]) for row in banded
        ]
        series.append(Series(words="its 90% band", points=area, colour="accent", band=True))
    if beyond:
        joined = [Point(x=row["num_gpus"], y=row["seconds_to_target"]) for row in (*within[-1:], *beyond)]
        series.append(Series(points=joined, colour="accent", line="dotted"))
    for name, some in (("predicted", within), ("predicted beyond", beyond)):
        if some:
            series.append(
                Series(
                    words=f"{name}{mark}",
                    points=[_point(row, part) for row in some],
                    colour="accent",
                    line="solid" if some is within else "",
                    shape="square",
                    hollow=some is beyond,
                )
            )
    return series


def _point(row: Row, part: Mapping[str, Any]) -> Point:
    mark = FLAGGED if part.get("flagged") else ""
    interval = between(row["low"], row["high"], seconds_text)
    words = [
        f"{plural(row['num_gpus'], 'worker')} at batch {row['batch_size']:g}, predicted",
        f"{seconds_text(row['seconds_to_target'])}{mark} to {part['target']:g}{interval}",
        f"{three_digits(row['worker_seconds'])}{mark} worker-seconds",
    ]
    return Point(x=row["num_gpus"], y=row["seconds_to_target"], words=words)


def _measured(rows: Sequence[Row], summary: Summary) -> list[Series]:
    places = places_of(summary)
    points = [
        Point(
            x=row["params"]["num_gpus"],
            y=row["seconds"],
            cells=[places[row["label"]]],
            note=flag_mark([summary["cells"][places[row["label"]]]]).strip(),
        )
        for row in rows
    ]
    return [Series(words="measured, soonest", points=points, colour="w1", shape="cross")] if points else []


def _uprights(rows: Sequence[Row], broken: Mapping[str, Any] | None) -> list[Upright]:
    """Return lines at the largest measured size, and where the prediction ends."""
    within = [row["num_gpus"] for row in rows if not row["beyond"]]
    uprights = []
    if within and any(row["beyond"] for row in rows):
        uprights.append(Upright(at=max(within), words="largest measured", colour="soft", line="dashed"))
    if broken:
        uprights.append(Upright(at=broken["num_gpus"], note="ends here", colour="ink", line="solid"))
    return uprights


def _caption(part: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Name the soonest size. The lead above the figure says where the prediction ends, and what is in doubt."""
    best = (part.get("best") or {}).get("fastest")
    best = best if best and present(best) else min(rows, key=lambda row: float(row["seconds_to_target"]))
    mark = FLAGGED if part.get("flagged") else ""
    interval = between(best["low"], best["high"], seconds_text)
    return (
        f"Predicted soonest: {plural(best['num_gpus'], 'worker')} at batch {best['batch_size']:g}, "
        f"{seconds_text(best['seconds_to_target'])}{mark}{interval} and {three_digits(best['worker_seconds'])} "
        "worker-seconds."
    )
