"""The picture of a run's experts: every one has its cell, and the worst is named."""

import dataclasses
from xml.etree import ElementTree as ET

import msgspec

from brimful.report.experts_section import experts_section, load_svg, whole_run
from brimful.report.run_folder import read_run_folder
from brimful.values.run_files import ExpertRow

ROWS = (
    ExpertRow(step=10, num_steps=10, blocks=(1, 3), load=((500,) * 4, (900, 400, 400, 300)),
              num_choices=1, dropped=(0, 40)),
    ExpertRow(step=15, num_steps=5, blocks=(1, 3), load=((500,) * 4, (1900, 40, 30, 30)),
              num_choices=1, dropped=(0, 60)),
)  # fmt: skip


def test_windows_are_added_up():
    whole = whole_run(ROWS)
    assert (whole.step, whole.num_steps) == (15, 15)
    assert whole.load == ((1000,) * 4, (2800, 440, 430, 330))
    assert whole.dropped == (0, 100)


def test_every_expert_has_a_cell_and_more_load_is_darker():
    svg = load_svg(whole_run(ROWS))
    ET.fromstring(svg)  # noqa: S314 - our own
    cells = [part for part in svg.split("<rect ") if 'height="15"' in part]
    assert len(cells) == 8
    shades = [int(cell.split('fill="#')[1][:2], 16) for cell in cells]
    assert len(set(shades[:4])) == 1
    assert min(shades) == shades[4]


def test_a_run_without_experts_has_no_section(full_run):
    assert experts_section(read_run_folder(full_run)) is None


def test_the_section_says_what_is_wrong_at_the_end(full_run):
    folder = read_run_folder(full_run)
    section = experts_section(dataclasses.replace(folder, expert_rows=ROWS))
    assert "the busiest expert was 0 of block 3: 70% of the tokens" in section
    assert "2.5% of the tokens found no place" not in section
    assert "Collapsed router in block 3: only about 1.3 of 4 experts" in section
    assert msgspec.json.decode(msgspec.json.encode(ROWS[0]), type=ExpertRow) == ROWS[0]
