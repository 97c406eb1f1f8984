"""Draws docs/pipeline/*.svg: what four slowed processes did, below what the replay says.

``python docs/generate_pipeline.py``; about half a minute. The moments are of this machine, so that
no test compares them; the order is compared by ``validation/bubbles_part.py``.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "validation"))

from bubbles_part import SECONDS, cases  # noqa: E402
from group import Turn, answers  # noqa: E402

from brimful.cost.pipeline_orders import Operation  # noqa: E402
from brimful.cost.pipeline_replay import Done, replay  # noqa: E402
from brimful.files.writing import write_text  # noqa: E402
from brimful.report.pipeline_chart import chart_svg  # noqa: E402

DEVICES = 4
DRAWN = ("1f1b", "interleaved", "zbv")


def main() -> None:
    """Time one step of each and draw it."""
    known = {
        case.strategy.pp_schedule: case
        for case, slowed in reversed(cases())
        if case.strategy.pp == DEVICES and set(slowed) == {SECONDS}
    }
    slowed = (SECONDS,) * DEVICES
    turns = [Turn(case=known[name], num_steps=0, slowed_s=slowed) for name in DRAWN]
    for turn, told in zip(turns, answers(turns, num_processes=DEVICES), strict=True):
        strategy = turn.case.strategy
        ran = replay(
            strategy.pp_schedule,
            num_micro_batches=turn.case.job.global_batch,
            stage_s=slowed,
            send_s=0.0,
            chunks=strategy.stages_per_device,
        )
        measured = [
            Done(device, Operation(op.kind, op.micro_batch, op.chunk), op.start_s, op.end_s)
            for device, one in enumerate(told)
            for op in one.happened
        ]
        name = strategy.pp_schedule
        charts = {f"{name}, predicted": ran.done, f"{name}, measured": measured}
        write_text(HERE / "pipeline" / f"{name}.svg", chart_svg(charts))


if __name__ == "__main__":
    main()
