"""The moonshot: the page is that of the evidence, and its arithmetic is that of the simulation."""

import runpy
from pathlib import Path

import moonshot_part
import pytest
from evidence import read_evidence
from moonshot_part import SITES, Site, block_bytes, job_of, pinned_block_bytes, shape, tried

from brimful.units import GIB, MIB

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
SMALL = Site("l4", 2 * GIB, 1024, 2048, ())


def test_the_page_is_that_of_the_evidence():
    page = runpy.run_path(str(ROOT / "docs" / "generate_moonshot.py"))["page"]()
    written = (ROOT / "docs" / "moonshot.md").read_text("utf-8")
    assert written == page, "run python docs/generate_moonshot.py"


def test_pinned_blocks_are_those_that_are_simulated():
    found = tried(SMALL, job_of(shape(SMALL, 4), "sgd"), 3).found
    block = pinned_block_bytes(SMALL, "sgd", travels=False)
    assert found.simulated_host_block_bytes == 3 * block
    assert found.simulated_host_block_bytes == found.simulated_peak_host_bytes


@pytest.mark.few(1)
@pytest.mark.parametrize("rule", ["adamw", "adamw-8bit"])
def test_state_that_travels_is_pinned_beside_its_block(rule):
    job = job_of(shape(SMALL, 4), rule)
    there, away = (tried(SMALL, job, 3, travels=travels).found for travels in (False, True))
    block = pinned_block_bytes(SMALL, rule, travels=True)
    assert away.simulated_host_block_bytes == 3 * block
    moved = away.simulated_peak_host_bytes - there.simulated_peak_host_bytes
    gained = there.simulated_peak_allocated_bytes - away.simulated_peak_allocated_bytes
    assert 0.5 * moved < gained <= moved  # the state of two parameters is on the device at a time


def test_a_block_is_half_as_large_as_its_two_bytes_say():
    model = shape(SITES[0], 3)
    assert block_bytes(model) == pytest.approx(4.36e9, rel=0.01)


@pytest.mark.long
def test_more_blocks_on_the_host_take_less_of_the_device():
    job = job_of(shape(SMALL, 6), "adafactor")
    peaks = [tried(SMALL, job, k).found.simulated_peak_allocated_bytes for k in (1, 5)]
    assert peaks[0] - peaks[1] == pytest.approx(4 * block_bytes(job.model), abs=MIB)


@pytest.mark.long
def test_the_small_run_is_made_again():
    rows = read_evidence("moonshot", ROOT / "validation").rows
    (ran,) = [row.run for row in rows if row.run is not None]
    here = moonshot_part.rehearse(read_evidence("moonshot", ROOT / "validation").provenance.seed)
    assert here.num_changed == here.num_tensors == ran.num_tensors
    assert here.last_loss < here.first_loss
    assert here.simulated_peak_host_bytes == ran.simulated_peak_host_bytes


def test_the_largest_fit_and_say_why_no_more():
    rows = read_evidence("moonshot", ROOT / "validation").rows
    largest = [row.simulated for row in rows if row.simulated and row.simulated.kind == "largest"]
    assert len(largest) == len(SITES) * len(moonshot_part.RULES)
    for row in largest:
        assert row.fits
        assert row.simulated_host_block_bytes <= row.host_limit_bytes
        assert row.simulated_peak_reserved_bytes <= row.capacity_bytes
        assert row.limit.startswith("one block more: the ")
