"""Live bytes over time in one line of text, with the steps below it."""

from brimful.values.results import Timeline

_LEVELS = " ▁▂▃▄▅▆▇█"
WIDTH = 96


def sparkline(timeline: Timeline, *, width: int = WIDTH) -> tuple[str, str]:
    """Draw the highest live bytes of every column, and say where each step begins.

    ``timeline``: live bytes after events. Returns the curve, its highest column full, and a line
    with the names of steps.
    """
    num_events = max(timeline.event, default=0) + 1
    highest = [0] * width
    for event, num_bytes in zip(timeline.event, timeline.live_bytes, strict=True):
        column = event * width // num_events
        highest[column] = max(highest[column], num_bytes)
    top = max(highest) or 1
    # A column without a sample is as high as the one before it.
    for column in range(1, width):
        highest[column] = highest[column] or highest[column - 1]
    curve = "".join(_LEVELS[-(-num_bytes * (len(_LEVELS) - 1) // top)] for num_bytes in highest)
    return curve, _steps(timeline, num_events, width)


def _steps(timeline: Timeline, num_events: int, width: int) -> str:
    line = ""
    named: set[str] = set()
    for start, phase in zip(timeline.phase_starts, timeline.phases, strict=True):
        step = " ".join(phase.split()[:2])
        column = start * width // num_events
        if step in named or column < len(line) or column + len(step) >= width:
            continue
        named.add(step)
        line = line.ljust(column) + f"{step} "
    return line.rstrip()
