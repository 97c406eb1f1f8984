"""Combinations of techniques: how they are chosen, made and summed up."""

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import technique_cells as cells
import techniques_part as part
import torch
from evidence import path_of, read_evidence
from sampler import Drawn, pairs_of
from technique_batches import FullBatches
from technique_worker import meters

from brimful.build.batch import IGNORE_INDEX
from brimful.build.tasks import task_of

pytestmark = pytest.mark.torch

FOLDER = Path(__file__).parents[2] / "validation"
PLAIN = {factor: values[0] for factor, values in cells.FACTORS.items()}
SMALL = cells.SMALLEST


def cell(**values):
    return {**PLAIN, "packing": "none", **values}


def case(**values):
    return cells.case_of(cell(**values), SMALL)


@pytest.fixture(scope="module")
def covered():
    return cells.cover(random.Random(1))  # noqa: S311 - cases, not secrets


@pytest.mark.long
def test_every_possible_pair_of_techniques_is_in_a_cell(covered):
    held = {pair for chosen in covered.cells for pair in pairs_of(chosen)}
    assert held == cells.all_pairs(cells.FACTORS) - covered.impossible
    assert len(covered.cells) >= 56
    assert len(covered.impossible) < 60
    assert sum(covered.refused.values()) >= len(covered.impossible)


@pytest.mark.long
def test_no_cell_that_was_chosen_is_refused(covered):
    assert [cells.refusal(chosen) for chosen in covered.cells] == [None] * len(covered.cells)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"adapters": "fp32"}, "without adapters"),
        ({"attention": "flash", "packing": "documents"}, "would change what this job learns"),
        ({"architecture": "bert", "loss": "chunked"}, "loss_chunks=4"),
        ({"tuning": "lora", "adapters": "norms", "precision": "bf16"}, "upcast=norms"),
        ({"architecture": "switch_transformers"}, "attention=sdpa"),
    ],
)
def test_a_combination_that_cannot_be_is_refused_with_its_reason(values, reason):
    assert reason in cells.refusal(cell(**values))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"packing": "wrapped"},
        {"packing": "documents", "accumulation": "more"},
        {"architecture": "bert"},
        {"architecture": "t5", "accumulation": "more"},
        {"architecture": "module", "accumulation": "more"},
    ],
)
def test_batches_have_the_shapes_that_are_simulated(values):
    made = case(**values)
    sample = task_of(made.job).sample(made.job, made.strategy)
    batches = FullBatches(made.job, micro_batch=made.strategy.micro_batch)
    assert len(list(batches)) == len(batches) == (3 if "accumulation" in values else 1)
    for batch in batches:
        shapes = [(x.shape, x.dtype) if x is not None else None for x in batch]
        assert shapes == [(x.shape, x.dtype) if x is not None else None for x in sample]


@pytest.mark.parametrize("packing", ["none", "documents"])
def test_a_row_is_full_and_padding_comes_last_and_is_no_target(packing):
    made = case(packing=packing)
    (batch,) = FullBatches(made.job, micro_batch=SMALL.rows)
    padding = batch.segments == 0
    assert not padding[0].any()
    assert padding.any()
    assert torch.equal(padding, padding.cummax(1).values)
    assert (batch.labels[padding] == IGNORE_INDEX).all()
    assert (batch.segments.max() > 1) == (packing == "documents")


def test_a_case_says_which_techniques_it_has():
    for chosen in (
        cell(tuning="qlora nf4-double", adapters="inputs", weights="folder", loss="chunked"),
        cell(checkpointing="selective:K", accumulation="more", precision="fp16-mixed"),
        cell(tuning="lora bf16", adapters="norms", precision="bf16-mixed", optimizer="sgd"),
    ):
        assert part.techniques_of(cells.case_of(chosen, SMALL)) == chosen


@pytest.mark.long
def test_weights_from_a_folder_are_simulated_and_run_in_a_process_without_the_tape():
    chosen = cell(tuning="lora bf16", weights="folder", precision="bf16-mixed")
    unwanted = Counter()
    made = part.sized(random.Random(3), chosen, unwanted)  # noqa: S311 - as above
    with meters() as pool:
        row = part.measured(pool, made)
    assert row.difference_bytes == (
        row.simulated_peak_allocated_bytes - row.measured_peak_allocated_bytes
    )
    assert abs(row.difference_bytes) <= row.allowed_bytes
    assert row.predicted_peak_allocated_bytes is None
    assert sum(item.simulated_bytes for item in row.items) == row.simulated_peak_allocated_bytes
    assert sum(item.measured_bytes for item in row.items) == row.measured_peak_allocated_bytes
    assert row.simulated_peak_allocated_bytes >= part.LEAST_PEAK_BYTES
    assert part.is_rich(row)
    far = msgspec.structs.replace(row, difference_bytes=-row.allowed_bytes - 1)
    summary = part.summarize([row, far], Drawn((), 2, ()))
    assert [text.split()[0] for text in summary.missed] == [f"{-row.allowed_bytes - 1:+d}"]


def test_a_real_run_knows_nothing_of_the_simulator():
    code = "import sys, technique_worker, technique_batches, brimful.build.assemble as _; "
    code += "import brimful.measure.meter; "
    code += "print([m for m in sys.modules if '.pretend' in m or '.simulate' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def committed():
    if not path_of("techniques", FOLDER).is_file():
        pytest.fail("validation/techniques.json is missing; make it with: make prove")
    return read_evidence("techniques", FOLDER)


def test_the_committed_rows_cover_the_techniques_and_are_no_free_pass():
    evidence = committed()
    rows, summary = evidence.rows, evidence.summary
    assert part.summarize(list(rows), Drawn((), summary.num_drawn, summary.refusals)) == summary
    assert len(rows) >= 56
    for row in rows:
        assert row.simulated_peak_allocated_bytes >= part.LEAST_PEAK_BYTES
        assert row.measured_peak_allocated_bytes <= part.MOST_PEAK_BYTES
    assert sum(map(part.is_rich, rows)) >= 0.9 * len(rows)
    seen = {pair for row in rows for pair in part.techniques_of(row.case).items()}
    assert seen == {(factor, v) for factor, values in cells.FACTORS.items() for v in values}
