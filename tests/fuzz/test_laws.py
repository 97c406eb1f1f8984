"""Every law holds on its rung, and the page lists them all."""

import runpy
from pathlib import Path

import laws
import msgspec
import pytest
from laws_of_costs import ALL_LAWS, SIMULATED

ROOT = Path(__file__).parents[2]
NUM_DRAWS, FEW, FEWER = 10, 2, 1
SLOW = {laws.more_memory: FEW, **dict.fromkeys(SIMULATED, FEWER)}


@pytest.mark.torch
@pytest.mark.parametrize("law", ALL_LAWS, ids=lambda law: law.name)
def test_it_holds(law):
    num = SLOW.get(law.check, NUM_DRAWS)
    held, found = laws.broken(law, num=num, seed=7)
    assert found == []
    assert held >= num / 2, "too few of the draws had a prediction"


def test_a_law_that_does_not_hold_is_told():
    def check(rng):
        case = laws.draw(rng)
        yield from laws._at_most(2 * laws.peak(case), laws.peak(case), "peak")

    wrong = msgspec.structs.replace(laws.LAWS[0], check=check)
    held, found = laws.broken(wrong, num=3, seed=7)
    assert (held, len(found)) == (3, 3)
    assert "is more than" in found[0]


def test_the_page_is_that_of_the_laws():
    generator = runpy.run_path(str(ROOT / "docs" / "generate_laws.py"))
    assert (ROOT / "docs" / "laws.md").read_text("utf-8") == generator["page"]()
