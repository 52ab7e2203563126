"""The figure of predicted times to the target."""

from scalestudy.experiments.report.predictions_figure import predictions_figure
from tests.support.rich_study import rich_summary


def series_of(figure):
    return {each.words: each for each in figure.numbers.series}


def places(series):
    return [(point.x, point.y) for point in series.points]


def test_the_prediction_is_solid_within_the_measured_sizes_and_dotted_beyond():
    summary = rich_summary()
    rows = [row for row in summary["predictions"]["rows"] if row["valid"]]
    expected = [(row["num_gpus"], row["seconds_to_target"]) for row in rows]
    series = series_of(predictions_figure(summary))
    assert places(series["predicted"]) == expected[:4]
    assert places(series["predicted beyond"]) == expected[4:]
    assert places(series[""]) == expected[3:]  # the dotted line begins where the solid one ends
    looks = [(series[words].line, series[words].hollow) for words in ("predicted", "predicted beyond", "")]
    assert looks == [("solid", False), ("", True), ("dotted", False)]
    band = series["its 90% band"]
    assert [(point.x, point.low, point.high) for point in band.points] == [
        (row["num_gpus"], row["low"], row["high"]) for row in rows
    ]
    assert series["predicted beyond"].points[0].words == [
        "16 workers at batch 2048, predicted",
        "8.90 s to 0.85 (7.03 s to 10.8 s)",
        "142 worker-seconds",
    ]


def test_of_each_size_the_soonest_measured_cell_stands_beside_it():
    summary = rich_summary()
    measured = series_of(predictions_figure(summary))["measured, soonest"]
    for point, workers in zip(measured.points, (1, 2, 4, 8), strict=True):
        of_size = [
            row["seconds"]
            for row in summary["time_to_target"]
            if row["target"] == 0.85 and row["params"]["num_gpus"] == workers and row["seconds"] is not None
        ]
        assert (point.x, point.y) == (workers, min(of_size))
        (place,) = point.cells
        assert summary["cells"][place]["params"]["num_gpus"] == workers
    soonest = summary["cells"][measured.points[-1].cells[0]]
    assert soonest["label"] == "workers=8 batch=1024 lr=0.2"
    soonest["flags"] = ["shared_node"]
    marked = series_of(predictions_figure(summary))["measured, soonest"].points
    assert [point.note for point in marked] == ["", "", "", "†"]


def test_lines_stand_at_the_largest_measured_size_and_where_the_prediction_ends():
    summary = rich_summary()
    numbers = predictions_figure(summary).numbers
    assert [(each.at, each.words, each.note) for each in numbers.uprights] == [
        (8, "largest measured", ""),
        (64, "", "ends here"),
    ]
    assert numbers.x.ticks == [1, 2, 4, 8, 16, 32, 64]
    assert (numbers.x.log, numbers.y.log, numbers.y.label) == (True, True, "training seconds to 0.85")
    within = [row for row in summary["predictions"]["rows"] if not row["beyond"]]
    known = {**summary["predictions"], "rows": within, "breaks_at": None}
    assert predictions_figure(rich_summary(predictions=known)).numbers.uprights == []
