"""Compiled programs that others measured on real cards, simulated from their source."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.long]  # half a minute each: 32 blocks in full width

SCRIPT = Path(__file__).parents[2] / "validation" / "compiled" / "titan.py"
GIB = 2**30


@pytest.mark.parametrize(
    ("arguments", "published_gib"),
    [
        ((), 49.58),  # pytorch/torchtitan@e23bb707d
        (("--compile",), 47.65),  # pytorch/torchtitan@069bae286
    ],
)
def test_llama_8b_of_torchtitan_reserves_what_was_published(arguments, published_gib):
    flags = ["--world-size", "8", "--allocator", "expandable_segments:True", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "brimful", "pretend", *flags, "--", str(SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        check=True,
    )
    report = json.loads(done.stdout)
    said = report["reserved"]["simulated_peak_reserved_bytes"] / GIB
    assert said == pytest.approx(published_gib, rel=0.01)
