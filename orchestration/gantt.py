"""Stage 2 for the eye: a forecast as lines of text – a bar a group over time, and what it comes to."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.forecast import Forecast
from orchestration.schedule import GroupSpan, Schedule, TrialSpan

BAR_WIDTH = 60
MOST_GROUPS = 16
BUSY, STARTING, IDLE, ABSENT = "█", "░", "·", " "


def forecast_lines(forecast: Forecast) -> list[str]:
    """The expected schedule: groups as bars, then makespan, bound, starts and evictions."""
    schedule = forecast.schedule
    if schedule is None:
        return [f"schedule: none ({forecast.why})"]
    return [*_bars(schedule, forecast.unit), *_summary(forecast, schedule)]


def _bars(schedule: Schedule, unit: str) -> list[str]:
    if not schedule.makespan:
        return []
    shown = schedule.groups[:MOST_GROUPS]
    by_group: dict[str, list[TrialSpan]] = {group.group_id: [] for group in shown}
    for span in schedule.trials:
        if span.group_id in by_group:
            by_group[span.group_id].append(span)
    width = max(len(_name(group)) for group in shown)
    lines = [
        f"{_name(group):<{width}} ▕{bar(group, by_group[group.group_id], schedule.makespan)}▏ {_trials(group.served)}"
        for group in shown
    ]
    hidden = len(schedule.groups) - len(shown)
    rest = [f"… and {hidden} more groups"] if hidden else []
    end = f"{schedule.makespan:.0f} {unit}"
    axis = f"{'':<{width}}  0{end:>{BAR_WIDTH - 1}}"
    return [*lines, *rest, f"{axis}   {STARTING} starts  {BUSY} trains  {IDLE} waits"]


def bar(group: GroupSpan, spans: Sequence[TrialSpan], makespan: float, width: int = BAR_WIDTH) -> str:
    """A group's life over time, in so many characters: what it does in the middle of each of them."""
    stopped = makespan if group.stopped is None else group.stopped
    ordered = sorted(spans, key=lambda span: span.start)
    letters, position = [], 0
    for index in range(width):
        now = (index + 0.5) / width * makespan
        while position < len(ordered) and ordered[position].end <= now:
            position += 1
        busy = position < len(ordered) and ordered[position].start <= now
        letters.append(_letter(group, now, stopped, busy=busy))
    return "".join(letters)


def _letter(group: GroupSpan, now: float, stopped: float, *, busy: bool) -> str:
    if not group.ordered <= now <= stopped:
        return ABSENT
    if now < group.ready:
        return STARTING
    return BUSY if busy else IDLE


def _summary(forecast: Forecast, schedule: Schedule) -> list[str]:
    slots = " + ".join(str(node.slots) for node in forecast.room.nodes)
    rule = "one trial at a time on a machine" if forecast.room.exclusive else "trials side by side where they fit"
    starts = f"{len(schedule.groups)} group starts, {schedule.evictions} of them ended early to make room"
    return [f"schedule: {_times(forecast, schedule)}", f"with room for {slots} workers, {rule}: {starts}"]


def _times(forecast: Forecast, schedule: Schedule) -> str:
    most = "at most, for trials may be stopped early: " if forecast.at_most else ""
    if forecast.unit == "seconds":
        bound = duration_text(schedule.lower_bound)
        return f"{most}about {duration_text(schedule.makespan)}; {bound} were every group started for nothing"
    return f"{most}{schedule.makespan:.0f} epochs one after another; in seconds not known ({forecast.why})"


def duration_text(seconds: float) -> str:
    """`48 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _name(group: GroupSpan) -> str:
    return f"{group.num_workers} worker{'s' if group.num_workers > 1 else ''}"


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"
