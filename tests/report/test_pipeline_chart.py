"""Charts of what devices of a pipeline do."""

import xml.etree.ElementTree as ET

import pytest

from brimful.report.pipeline_chart import WIDTH, chart_svg, chart_text, schedule_of
from samples import make_job, make_model, make_strategy

JOB = make_job(model=make_model(num_hidden_layers=9), global_batch=8)
WAYS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero-bubble": 2, "zbv": 2, "dualpipev": 2}


def strategy_of(schedule):
    return make_strategy(
        pp=4, pp_schedule=schedule, stages_per_device=WAYS[schedule], micro_batch=1
    )


@pytest.mark.parametrize("schedule", WAYS)
def test_every_device_has_a_row_and_every_line_fits(schedule):
    ran = schedule_of(JOB, strategy_of(schedule))
    *rows, _letters, idle = chart_text(ran).splitlines()
    assert len(rows) == 4
    assert all(len(row) <= WIDTH for row in chart_text(ran).splitlines())
    assert f"idle {ran.bubble_share:.1%}" in idle
    drawn = "".join(row[9:] for row in rows)
    assert drawn.count(".") / len(drawn) == pytest.approx(ran.bubble_share, abs=0.03)


def test_1f1b_is_drawn_as_it_is():
    ran = schedule_of(JOB, strategy_of("1f1b"))
    assert ran.total_s == (8 + 3) * 3
    assert ran.in_flight == (4, 3, 2, 1)
    assert chart_text(ran).splitlines()[3][9:].startswith("........")


def test_the_picture_has_a_block_for_each_operation():
    ran = schedule_of(JOB, strategy_of("zbv"))
    root = ET.fromstring(chart_svg({"one": ran.done, "two": ran.done}))  # noqa: S314 - our own
    blocks = [
        x for x in root.iter("{http://www.w3.org/2000/svg}rect") if "fill-opacity" in x.attrib
    ]
    assert len(blocks) == 2 * len(ran.done)
