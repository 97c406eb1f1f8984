"""How much of a batch would fit by proportion: beside runs of the same program with each size."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from brimful import pretend
from brimful.allocator.config import parse_settings
from brimful.allocator.held import held_of
from brimful.pretend.proportion import Argument, Proportion, Room, batch_of, by_proportion
from brimful.show.sizes import _about, largest_facts
from brimful.units import MIB

pytestmark = pytest.mark.torch

WIDTH, DEPTH, GIVEN = 512, 6, 3000
NATIVE = parse_settings("")


def trained(batch, *, foreach=True, num_parts=1):
    """Train with a copy that no optimizer has, and an update that makes lists of temporaries."""
    with pretend.gpu("t4") as run:
        layers = [
            nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.GELU()) for _ in range(DEPTH)
        ]
        model = nn.Sequential(*layers).cuda()
        average = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        for _ in range(2):
            for _ in range(num_parts):
                x = torch.randn(batch // num_parts, WIDTH, device="cuda")
                model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            for old, new in zip(average.parameters(), model.parameters(), strict=True):
                old.lerp_(new.detach(), 1e-3)
    return run


def held_bytes(run):
    requests = run.recording().requests()
    return held_of(requests, settings=NATIVE, capacity_bytes=None).peak_reserved_bytes


def told(run, most_bytes, *arguments):
    given = arguments or (Argument("batch", GIVEN),)
    return by_proportion(run.recording(), given, Room(NATIVE, most_bytes, most_bytes))


@pytest.fixture(scope="module")
def large():
    return trained(GIVEN)


@pytest.mark.parametrize("fits", [1500, 400])
def test_what_is_told_fits_and_little_more_does_not(large, fits):
    most_bytes = held_bytes(trained(fits))
    found = told(large, most_bytes)
    assert found.names == ("batch",)
    assert found.least == found.most
    assert held_bytes(trained(found.least)) <= most_bytes
    assert held_bytes(trained(found.least * 6 // 5)) > most_bytes


def test_the_update_binds_where_a_small_batch_is_all_that_has_room(large):
    """Saved inputs are most of the large run; the update's temporaries are all of the small one."""
    assert "optimizer" not in large.report().peak_phase
    small = trained(16)
    assert "optimizer" in small.report().peak_phase
    peak = small.peak_allocated_bytes
    room = Room(NATIVE, peak - 1, peak - 1)
    assert by_proportion(large.recording(), [Argument("batch", GIVEN)], room).most == 0


def test_the_argument_is_the_one_whose_number_is_seen_in_the_sizes(large):
    several = Argument("epoch-batches", 7), Argument("batch", GIVEN), Argument("part-batch", 3)
    assert told(large, 100 * MIB, *several).names == ("batch",)
    assert told(large, 100 * MIB, Argument("epoch-batches", 7)) is None
    assert told(large, 100 * MIB, Argument("batch", 1)) is None
    same = Argument("batch", GIVEN), Argument("eval-batch", GIVEN)
    assert told(large, 100 * MIB, *same).names == ("batch", "eval-batch")


def test_a_micro_batch_is_told_from_the_batch_that_it_is_a_part_of():
    run = trained(GIVEN, num_parts=4)
    both = Argument("batch", GIVEN), Argument("micro-batch", GIVEN // 4)
    assert told(run, 80 * MIB, *both).names == ("micro-batch",)


def test_what_may_be_a_weight_or_an_activation_makes_a_range():
    """A batch as large as the model is wide: activations have the sizes of weights."""
    found = told(trained(WIDTH), 60 * MIB, Argument("batch", WIDTH))
    assert found.least < found.most


def test_of_a_batch_of_one_no_smaller_one_is_looked_for(large, tmp_path):
    report = large.report(budget_bytes=100 * MIB)
    script = tmp_path / "x.py"
    for default, num in ((1, 0), (4, 1)):
        script.write_text(f"parser.add_argument('--micro-batch', type=int, default={default})")
        assert len(largest_facts(report, [str(script)], None)) == num
        assert len(largest_facts(report, ["x.py", "--batch", f"{default}"], None)) == num


def test_words(large):
    report = large.report(budget_bytes=100 * MIB)
    words = largest_facts(report, ["x.py", "--batch", f"{GIVEN}"], None, large.recording())[0].text
    found = told(large, 100 * MIB)
    assert words == f"about batch {found.least} by proportion; --largest batch before -- finds it"
    report = large.report(budget_bytes=32 * MIB)
    words = largest_facts(report, ["x.py", "--batch", f"{GIVEN}"], None, large.recording())[0].text
    assert words.startswith("by proportion not even batch 1 fits")


@pytest.mark.parametrize(
    ("least", "words"),
    [(0, "batch at most 29 by"), (3, "about batch 3 to 29 by"), (29, "about batch 29 by")],
)
def test_a_range_from_nothing_is_told_by_its_end(least, words):
    found = Proportion(("batch",), least, 29, is_sure=True)
    assert _about(found).text.startswith(words)


def test_an_argument_of_none_says_no_batch(large):
    assert told(large, 100 * MIB, Argument("warmup-batches", 0)) is None


def test_tables_of_whole_numbers_tell_a_batch_where_they_agree(large):
    def rows_of(*shapes):
        recording = large.recording()
        first = len(recording.shapes)
        tables = [(f"[{', '.join(map(str, shape))}]", "int64") for shape in shapes]
        made = recording.shape_dtype.copy()
        made[: len(tables)] = range(first, first + len(tables))
        changed = replace(recording, shapes=(*recording.shapes, *tables), shape_dtype=made)
        found = batch_of(changed, (), by_tensors=True)
        return None if found is None else found.given

    assert rows_of((GIVEN, 7)) == GIVEN
    assert rows_of((WIDTH, WIDTH), (GIVEN, 7)) == GIVEN  # positions to one another are square
    assert rows_of((WIDTH, 9), (GIVEN, 7)) is None  # nobody knows which of them it is
    assert rows_of((GIVEN,)) == GIVEN
    assert rows_of((1, GIVEN), (GIVEN,)) is None  # a text's tokens, one after another


def attended(batch):
    with pretend.gpu("t4") as run:
        layer = nn.TransformerEncoderLayer(128, 16, 256, batch_first=True)
        model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).cuda()
        optimizer = torch.optim.SGD(model.parameters(), foreach=False)
        for _ in range(2):
            model(torch.randn(batch, 63, 128, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


def test_the_workspaces_of_attention_grow_with_the_batch():
    most_bytes = held_bytes(attended(300))
    least, most = told(attended(1000), most_bytes, Argument("batch", 1000))[1:3]
    assert 270 <= least <= 303
    assert most <= 330
