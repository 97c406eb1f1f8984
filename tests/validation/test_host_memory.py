"""The evidence of host memory: real runs on a CPU beside what was predicted of them."""

from pathlib import Path

import msgspec
import pytest
from host_memory import CASES, DISK_BAR, OUT, SCHEMA, Row

LEAST_CASES = 8
LARGEST_ERROR = 0.1
"""Of the highest peak, against the low end of its band."""


@pytest.fixture(scope="module")
def evidence():
    return msgspec.json.decode(Path(OUT).read_bytes())


@pytest.fixture(scope="module")
def rows(evidence):
    return [msgspec.convert(row, Row) for row in evidence["rows"]]


def test_it_is_what_the_script_writes(evidence, rows):
    assert evidence["schema"] == SCHEMA
    assert evidence["provenance"]["versions"]
    assert [row.name for row in rows] == [asked.name for asked in CASES]


def test_there_are_enough_cases_of_every_kind(rows):
    assert len(rows) >= LEAST_CASES
    assert {row.saving for row in rows} == {"sync", "async"}
    assert any(asked.resumes for asked in CASES)


def test_every_run_stayed_within_its_band(rows):
    for row in rows:
        assert row.is_within, row.name
        highest = max(row.measured.values())
        assert abs(highest / row.predicted_host_bytes[0] - 1) <= LARGEST_ERROR, row.name


def test_every_checkpoint_takes_the_disk_that_was_predicted(rows):
    assert all(abs(row.disk_error) <= DISK_BAR for row in rows)
