"""Two schedules of one's own: what `train.schedule` names as schedules:decay and schedules:halves."""


def decay(progress: float, gamma: float = 0.1) -> float:
    """Fall to the share gamma. progress: from 0, after the warm-up, to 1."""
    return gamma**progress


def halves(step: int, steps: int) -> float:
    """Halve the rate half way. step: 0 to steps - 1, after the warm-up; epochs with `per: epoch`."""
    return 1.0 if 2 * step < steps else 0.5
