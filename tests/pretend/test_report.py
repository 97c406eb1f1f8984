"""Every number of a pretend report is the recording's own, or the replay's."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from brimful.allocator.config import PYTORCH_DEFAULTS
from brimful.allocator.replay import replay
from brimful.cost.assumptions import DATASHEET
from brimful.errors import InputError
from brimful.pretend.modules import by_owner, by_pattern, pattern_of, whole_of
from brimful.pretend.recording_builder import RecordingBuilder
from brimful.pretend.report import read_report
from brimful.pretend.report_values import PRETEND_SCHEMA, PretendReport
from brimful.units import GIB, KIB, MIB
from brimful.values.results import PARAMETERS

from .recordings import ACTIVATION, COMM_STREAM, PARAMETER, long_run, place, small_run, take

NATIVE = PYTORCH_DEFAULTS
EXPANDABLE = replace(NATIVE, expandable_segments=True)
NOTHING = long_run(0)


class Card:
    name = "a card"
    usable_bytes = 80 * GIB


def read(recording=None, host=NOTHING, *, settings=NATIVE, budget=None, **known):
    return read_report(
        small_run() if recording is None else recording,
        host,
        card=Card(),
        settings=settings,
        budget_bytes=budget,
        assumptions=known.get("assumptions", ()),
        unknown_ops=known.get("unknown_ops", {}),
    )


def test_it_survives_json():
    report = read(budget=180 * MIB, unknown_ops={"aten.foo": 2}, assumptions=("b", "a"))
    assert msgspec.json.decode(msgspec.json.encode(report), type=PretendReport) == report
    assert report.schema == PRETEND_SCHEMA
    assert report.card == "a card"


def test_the_peak_is_the_sum_of_what_is_alive_at_it():
    report, recording = read(), small_run()
    live = recording.live_bytes()
    peak = report.simulated_peak_allocated_bytes
    assert peak == live.max() == live[report.peak_event]
    assert report.peak_phase == "step 1 optimizer"
    for parts in (report.items, [o.whole for o in report.owners], report.tensors, report.alike):
        assert sum(part.num_bytes for part in parts) == peak
    assert {item.name: item.num_bytes for item in report.items} == {
        "parameters": 2 * PARAMETER,
        "gradients": 2 * PARAMETER,
        "optimizer state": 4 * PARAMETER,
        "kernel workspaces": 8 * KIB,
    }


def test_the_numbers_of_a_long_run_add_up():
    recording = long_run(20_000)
    report = read(recording)
    peak = report.simulated_peak_allocated_bytes
    assert peak == recording.live_bytes().max()
    assert sum(item.num_bytes for item in report.items) == peak
    assert sum(owner.whole.num_bytes for owner in report.owners) == peak
    for owner in report.owners:
        assert sum(part.num_bytes for part in owner.parts) == owner.whole.num_bytes
        assert sum(item.num_bytes for item in owner.items) == owner.whole.num_bytes
    (owner,) = report.owners
    assert owner.whole.module == "model.layers.*"
    assert len(owner.parts) == 5
    assert report.num_events == 20_000
    assert max(report.timeline.live_bytes) == peak


def test_like_tensors_are_together():
    alike = read().alike
    assert [(a.num_tensors, a.num_bytes, a.one.item) for a in alike] == [
        (2, 4 * PARAMETER, "optimizer state"),
        (2, 2 * PARAMETER, "parameters"),
        (2, 2 * PARAMETER, "gradients"),
        (1, 8 * KIB, "kernel workspaces"),
    ]
    assert alike[2].module == "model.layers.*.mlp"


def test_a_tensor_says_everything_that_is_known_of_it():
    tensor = next(t for t in read().tensors if t.item == "gradients")
    assert (tensor.op, tensor.node, tensor.line) == (
        "aten.mm.default",
        "MmBackward0",
        "train.py:12",
    )
    assert (tensor.shape, tensor.dtype) == ("[12582912]", "bfloat16")
    assert (tensor.stream, tensor.phase) == (0, "step 1 backward")


def test_what_forward_keeps_is_the_rest_at_its_end():
    kept = read().kept
    assert kept.phase == "step 1 forward"
    assert kept.num_bytes == 2 * ACTIVATION + 4
    assert [(m.module, m.num_modules, m.num_bytes) for m in kept.modules] == [
        ("model.layers.*.mlp", 2, 2 * ACTIVATION),
        ("loss", 1, 4),
    ]


def test_a_run_without_a_forward_keeps_nothing():
    assert read(replace(small_run(), phases=("load", "a", "b", "c"))).kept is None


def leaking(num_steps, *, keeps):
    """Steps that each leave a tensor behind, or let go of it."""
    b = RecordingBuilder()
    take(b, PARAMETER, place("aten.empty.memory_format", line=3), item=PARAMETERS)
    for step in range(1, num_steps + 1):
        b.begin_phase(f"step {step} forward")
        row = take(b, ACTIVATION, place("aten.mm.default", "head", line=9))
        b.begin_phase(f"step {step} optimizer")
        if not keeps:
            b.free(row)
    return b.build()


def test_what_every_step_leaves_behind_grows():
    grows = read(leaking(8, keeps=True)).grows
    assert (grows.num_bytes, grows.num_steps) == (ACTIVATION, 5)
    assert grows.largest.line.endswith(":9")


@pytest.mark.parametrize(("num_steps", "keeps"), [(8, False), (5, True)])
def test_of_few_steps_nothing_is_said_to_grow(num_steps, keeps):
    assert read(leaking(num_steps, keeps=keeps)).grows is None


def test_phases_from_step_two_on_are_one():
    report = read(long_run(4000))
    names = [phase.phase for phase in report.phases]
    assert names == [
        "load",
        *(
            f"step {step} {part}"
            for step in ("1", "2+")
            for part in ("forward", "backward", "optimizer")
        ),
        "end",
    ]
    assert max(phase.num_bytes for phase in report.phases) == report.simulated_peak_allocated_bytes


# -- the allocator --


def test_reserved_is_that_of_the_replay():
    for settings in (NATIVE, EXPANDABLE, replace(EXPANDABLE, max_split_size_bytes=64 * MIB)):
        report = read(settings=settings)
        peaks = [
            replay(small_run().requests(), settings=s, capacity_bytes=None).peak_reserved_bytes
            for s in (settings, NATIVE, EXPANDABLE)
        ]
        assert peaks == [
            report.reserved.simulated_peak_reserved_bytes,
            report.reserved.simulated_peak_reserved_native_bytes,
            report.reserved.simulated_peak_reserved_expandable_bytes,
        ]
        assert sum(pool.num_bytes for pool in report.reserved.pools) == peaks[0]
    assert {pool.stream for pool in report.reserved.pools} == {0, COMM_STREAM}
    assert report.allocator == "expandable_segments:True,max_split_size_mb:64"


def test_blocks_are_rounded_up():
    report = read()
    replayed = replay(small_run().requests(), settings=NATIVE, capacity_bytes=None)
    assert report.simulated_peak_block_bytes == replayed.peak_allocated_bytes
    assert report.simulated_peak_block_bytes >= report.simulated_peak_allocated_bytes


def test_it_fits_a_card_less_what_is_outside():
    report = read()
    at = report.at_capacity
    assert report.fits
    assert (at.outcome, at.num_retries, at.failure) == ("fits", 0, None)
    assert at.capacity_bytes == Card.usable_bytes - DATASHEET.context_low_bytes
    assert at.simulated_peak_reserved_bytes == report.reserved.simulated_peak_reserved_bytes
    (outside,) = report.outside
    assert (outside.low_bytes, outside.high_bytes) == (
        DATASHEET.context_low_bytes,
        DATASHEET.context_high_bytes,
    )


def test_a_budget_above_the_card_changes_nothing():
    assert read(budget=200 * GIB).at_capacity.capacity_bytes == read().at_capacity.capacity_bytes


def test_at_the_brim_it_fits_with_retries():
    report = read(budget=200 * MIB)
    assert (report.fits, report.at_capacity.outcome) == (True, "fits with retries")
    expected = replay(small_run().requests(), settings=NATIVE, capacity_bytes=200 * MIB)
    assert report.at_capacity.num_retries == expected.num_retries > 0
    assert report.at_capacity.simulated_peak_reserved_bytes <= 200 * MIB
    # What it would take is not what it can have.
    assert report.reserved.simulated_peak_reserved_bytes > 200 * MIB


def test_out_of_memory_says_who_asked_for_what_and_where():
    report = read(budget=180 * MIB)
    failure = report.at_capacity.failure
    assert (report.fits, report.at_capacity.outcome) == (False, "out of memory")
    assert (failure.event, failure.num_events) == (20, 23)
    assert failure.short_bytes == 14 * MIB
    assert failure.allocated_bytes == small_run().live_bytes()[19]
    assert failure.tensor.num_bytes == 48 * MIB
    assert (failure.tensor.module, failure.tensor.op, failure.tensor.line) == (
        "model.layers.1.mlp",
        "aten.zeros_like.default",
        "train.py:13",
    )


def test_the_first_request_can_fail():
    failure = read(budget=1).at_capacity.failure
    assert (failure.event, failure.allocated_bytes) == (0, 0)


def test_a_flush_of_the_program_is_replayed():
    recording = long_run(3000)
    never = replace(recording, cache_flushes=np.zeros(0, dtype=np.int64))
    often = replace(recording, cache_flushes=np.arange(0, 3000, 10))
    assert read(never).reserved != read(often).reserved


# -- what is beside --


def test_masks_and_scores_are_told_by_their_shape():
    shapes = ("[2, 1, 64, 64]", "[2, 8, 64, 64]", "[64, 64]", "[2, 8, 64, 32]")
    recording = small_run()
    saved = [4, 6]  # the two activations
    for shape, dtype, mask, score in (
        (shapes[0], "bfloat16", 2, 0),
        (shapes[1], "bool", 2, 0),
        (shapes[1], "bfloat16", 0, 2),
        (shapes[2], "bfloat16", 0, 0),
        (shapes[3], "bfloat16", 0, 0),
        ("[]", "float32", 0, 0),
    ):
        column = recording.shape_dtype.copy()
        column[saved] = len(recording.shapes)
        changed = replace(recording, shape_dtype=column, shapes=(*recording.shapes, (shape, dtype)))
        attention = read(changed).attention
        assert attention.simulated_peak_mask_bytes == mask * ACTIVATION
        assert attention.simulated_peak_score_bytes == score * ACTIVATION
        assert (attention.largest is None) == (mask + score == 0)


def test_the_host_is_apart():
    host = read(host=small_run()).host
    assert host.simulated_peak_bytes == small_run().live_bytes().max()
    assert host.tensors[0].num_bytes == 48 * MIB
    assert read().host.simulated_peak_bytes == 0


def test_unknown_operations_and_assumptions_are_listed():
    report = read(unknown_ops={"a": 1, "b": 7, "c": 1}, assumptions={"y", "x"})
    assert [(op.op, op.num_calls) for op in report.unknown_ops] == [("b", 7), ("a", 1), ("c", 1)]
    assert report.assumptions == ("x", "y")


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_of_nothing_is_refused(budget):
    with pytest.raises(InputError, match="leaves nothing"):
        read(budget=budget)


def test_nothing_recorded_is_refused():
    with pytest.raises(InputError, match="0 bytes were allocated"):
        read(NOTHING)


# -- modules --


@pytest.mark.parametrize(
    ("module", "pattern", "whole"),
    [
        ("", "", ""),
        ("lm_head", "lm_head", "lm_head"),
        ("model.layers.31.mlp", "model.layers.*.mlp", "model.layers.*"),
        ("layers.0.experts.12.w1", "layers.*.experts.*.w1", "layers.*"),
        ("0.1", "*.*", "*"),
        ("conv2d.x3", "conv2d.x3", "conv2d.x3"),
    ],
)
def test_numbers_of_a_path_become_stars(module, pattern, whole):
    assert pattern_of(module) == pattern
    assert whole_of(module) == whole


def test_rows_are_split_and_none_is_lost():
    recording = long_run(2000)
    rows = recording.alive_at(900)
    groups = by_owner(recording, rows)
    together = np.sort(np.concatenate([its for _, its in groups]))
    assert np.array_equal(together, rows)
    assert sum(part.num_allocations for part in by_pattern(recording, rows)) == len(rows)
    assert by_pattern(recording, rows[:0]) == ()


# -- a real program --


def trained():
    """Two steps of a small network with attention, on the pretend GPU."""
    import torch
    from torch import nn

    from brimful import pretend

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x):
            scores = torch.softmax(x @ x.transpose(-1, -2), -1)
            return x + self.down(torch.relu(self.up(scores @ x)))

    with pretend.gpu("h100-80gb", says_cuda=False) as run:
        model = nn.Sequential(*[Block() for _ in range(3)]).to("gpu:0")
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.ones(2, 4, 32, 64, device="gpu:0")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


@pytest.mark.torch
def test_a_program_is_read_as_it_was_written():
    run = trained()
    report = read_report(
        run.recording(),
        run.recording("cpu"),
        card=run.card,
        settings=NATIVE,
        budget_bytes=None,
        assumptions=run.tape.assumptions,
        unknown_ops=run.tape.unknown_ops,
    )
    num_parameters = 3 * (64 * 256 + 256 + 256 * 64 + 64)
    items = {item.name: item.num_bytes for item in report.items}
    assert items["parameters"] == 4 * num_parameters
    assert sum(items.values()) == report.simulated_peak_allocated_bytes
    kept = {part.module: part for part in report.kept.modules}
    # Of each block at least the results of softmax and relu, which their backward wants.
    assert kept["*"].num_modules == 3
    assert kept["*"].num_bytes >= 3 * (2 * 4 * 32 * 32 + 2 * 4 * 32 * 256) * 4
    # Three blocks' softmax results, 2 x 4 x 32 x 32 numbers each, and what is beside the last one.
    one = 2 * 4 * 32 * 32 * 4
    assert report.attention.simulated_peak_score_bytes >= 3 * one
    assert report.attention.largest.num_bytes == one
    assert report.attention.largest.line.startswith(__file__)
    assert [phase.phase for phase in report.phases][-1] == "step 2+ optimizer"
    assert report.fits


@pytest.mark.torch
def test_the_files_of_a_program_say_the_same(tmp_path):
    from brimful.pretend.perfetto import trace_of
    from brimful.pretend.snapshot import snapshot_of
    from brimful.pretend.tape_file import load_recording, save_recording

    run = trained()
    save_recording(run.recording(), tmp_path / "tape.npz")
    recording = load_recording(tmp_path / "tape.npz")
    peak = int(recording.live_bytes().argmax())
    for settings in (NATIVE, EXPANDABLE):
        how = {"settings": settings, "capacity_bytes": None}
        report = read(recording, settings=settings)
        snapshot = snapshot_of(recording, **how, until_event=peak)
        allocated = sum(
            block["requested_size"]
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        )
        counters = {"live bytes": 0, "reserved bytes": 0}
        for event in trace_of(recording, **how)["traceEvents"]:
            if event["ph"] == "C" and event["name"] in counters:
                counters[event["name"]] = max(counters[event["name"]], event["args"]["bytes"])
        assert allocated == counters["live bytes"] == report.simulated_peak_allocated_bytes
        reserved = report.reserved.simulated_peak_reserved_bytes
        assert counters["reserved bytes"] == reserved
