"""DeepSpeed's engine by formula: against its own code as it was recorded, and by hand."""

from pathlib import Path

import pytest
from deepspeed_predicted_part import WORST_BAR, predicted
from evidence import read_evidence

from brimful.cli.flags import asked
from brimful.cli.main import parser_of
from brimful.cost.deepspeed_engine import fullest_rank, pieces_of
from brimful.cost.estimate import estimate

VALIDATION = Path(__file__).parents[2] / "validation"
ROWS = read_evidence("deepspeed_predicted", VALIDATION).rows
ASKED = "tinyllama-1.1b --gpus 8xh100-80gb --engine deepspeed --precision bf16-master"


def asked_of(flags):
    return asked(parser_of("estimate").parse_args([*ASKED.split(), *flags.split()]))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.flags.replace(" ", "_"))
def test_it_is_what_its_own_code_takes(row):
    assert predicted(row.flags) == pytest.approx(row.simulated_peak_allocated_bytes, rel=WORST_BAR)


def test_a_share_of_every_parameter_is_updated_in_fp32():
    job, _, strategy = found = asked_of("--zero 1")
    pieces = pieces_of(job, strategy)
    assert pieces.whole - sum(pieces.sizes) < 2 * 8
    items = {item.name: item.num_bytes for item in estimate(*found).items}
    assert items["parameters"] == 2 * pieces.whole
    assert items["optimizer state"] == 12 * pieces.share


@pytest.mark.parametrize("zero", [1, 2])
def test_later_micro_batches_have_gradients_beside_them(zero):
    """Of stage 1 whole ones, of stage 2 those that a share has a part of."""
    (job, _, strategy), two = (
        asked_of(f"--zero {zero}"),
        asked_of(f"--zero {zero} --global-batch 16"),
    )
    one_peak, two_peak = (
        estimate(*each).predicted_peak_allocated_bytes for each in ((job, _, strategy), two)
    )
    pieces = pieces_of(job, strategy)
    assert two_peak - one_peak == pytest.approx(
        2 * (pieces.whole if zero == 1 else pieces.touched), rel=0.01
    )


def test_who_holds_most_has_part_of_the_most():
    job, _, strategy = asked_of("--zero 2")
    ends, most = 0, []
    share = pieces_of(job, strategy).share
    for rank in range(8):
        first, last, ends = rank * share, (rank + 1) * share, 0
        touched = 0
        for size in pieces_of(job, strategy).sizes:
            begin, ends = ends, ends + size
            touched += size * (begin < last and ends > first)
        most.append(touched)
    assert fullest_rank(job, strategy) == most.index(max(most))
