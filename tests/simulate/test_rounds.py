"""Loops of which few rounds run, against all of them running."""

import builtins
import importlib
import random
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from brimful.build.assemble import build_skeleton
from brimful.models.config import read_config
from brimful.pretend import device, rounds
from brimful.pretend.fake_mode import FakeMode
from brimful.pretend.tape import Tape
from brimful.simulate.run import trace
from samples import make_job, make_strategy
from tapes import assert_same_tape

pytestmark = pytest.mark.torch

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 304}
MODELS = {
    "mamba": {"state_size": 4, "time_step_rank": 4, "expand": 2},
    "rwkv": {"attention_hidden_size": 32, "context_length": 64},
    "recurrent_gemma": {
        "num_hidden_layers": 3, "intermediate_size": 64, "num_attention_heads": 2, "head_dim": 16,
        "lru_width": 32, "attention_window_size": 64,
    },
}  # fmt: skip
"""One that puts into lists what it makes, two that write it into a tensor."""
LENGTH = rounds.NUM_FIRST + rounds.NUM_TOLD + 3


@pytest.fixture
def short(monkeypatch):
    """Leave rounds out of loops as short as the ones here; list how many each tape lacks."""
    monkeypatch.setattr(rounds, "FEWEST", LENGTH)
    lacking, fill = [], rounds._fills

    def told(states, num_more):
        found = fill(states, num_more)
        lacking.append(0 if found is None else num_more)
        return found

    monkeypatch.setattr(rounds, "_fills", told)
    return lacking


@pytest.mark.parametrize(
    ("model_type", "checkpointing", "precision"),
    [
        ("mamba", "none", "bf16-mixed"),
        ("mamba", "full:1", "bf16-mixed"),
        ("rwkv", "none", "bf16-mixed"),
        ("recurrent_gemma", "full:1", "bf16"),  # a block keeps its last state, with its graph
    ],
)
def test_rounds_that_are_left_out_are_what_all_would_have_done(
    model_type, checkpointing, precision, short
):
    model = read_config("tiny", {**SIZES, **MODELS[model_type], "model_type": model_type})
    job = make_job(model=model, seq_len=LENGTH, global_batch=2, precision=precision)
    strategy = make_strategy(
        micro_batch=1,
        activation_checkpointing=checkpointing,
        attention="eager",
        fused_kernels="torch",
    )
    how = {"imitate": "cuda", "count_costs": True, "num_steps": 1}
    whole = trace(job, strategy, **how)
    assert not short
    fewer = trace(job, strategy, leaves_out=True, **how)
    assert set(short) == {3}
    assert_same_tape(fewer.recording, whole.recording)


class Looping(nn.Module):
    """Goes round once for every row of what it is given, in one of several ways."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how = nn.Linear(8, 8), how

    def forward(self, x):
        return self.how(self.layer(x))


def kept_in_two_lists(x):
    state, rows, others = x[0], [], []
    for i in range(len(x)):
        state = torch.tanh(x[i] * state)
        rows.append(state * 2)
        others.append(state.exp())
        rows.append(state * 3)
    return torch.stack(rows).sum() + torch.stack(others).sum()


def left_before_its_end(x):
    state = x[0]
    for i in range(len(x)):
        state = torch.tanh(x[i] * state)
        if i == len(x) - 3:
            break
    return (state * x).sum()


def counted(x):
    state, num = x[0], 1
    for i in range(len(x)):
        state = torch.tanh(x[i] * state)
        num += 1
    return (state * x).sum() * num


def counted_in_a_list(x):
    num = [1]
    for i in range(len(x)):
        num[0] += torch.tanh(x[i]).dim()
    return x.sum() * num[0]


def growing(x):
    state, before = x[0], x[:1]
    for i in range(len(x)):
        before = x[: i + 1]
        state = torch.tanh(x[i] * state)
    return (before.sum() * state * x).sum()


def comprehended(x):
    return torch.stack([torch.tanh(x[i]) for i in range(len(x))]).sum()


def kept_by_number(x):
    made = {}
    for i in range(len(x)):
        made[i] = torch.tanh(x[i])
    return torch.stack(list(made.values())).sum()


def zipped(x):
    rows = []
    for i, row in zip(range(len(x)), x, strict=True):
        rows.append(torch.tanh(row * x[i]))
    return torch.stack(rows).sum()


def taped(how, *, leaves_out, kind=Looping):
    """Record a forward and a backward of a program."""
    device.register()
    model = kind(how)
    tape = Tape(count_costs=True)
    with FakeMode(allow_non_fake_inputs=True), tape:
        x = torch.zeros(LENGTH, 8, device="gpu:0")
        model.layer.weight, model.layer.bias = (
            nn.Parameter(torch.zeros(shape, device="gpu:0")) for shape in ((8, 8), (8,))
        )
        tape.name_modules(model)
        with rounds.leaving_out(tape, model) if leaves_out else nullcontext():
            model(x).backward()
        assert type(range(LENGTH)) is builtins.range
    return tape.finish()


@pytest.mark.parametrize(
    ("how", "num_left_out"),
    [
        (kept_in_two_lists, 3),
        (left_before_its_end, 3),
        (counted, 0),
        (counted_in_a_list, 0),
        (growing, 0),
        (comprehended, None),
        (kept_by_number, 0),
        (zipped, None),
    ],
)
def test_rounds_are_left_out_where_what_is_held_stays(how, num_left_out, short):
    """None: nothing was asked of what is held, since rounds or loops are none of that kind."""
    whole, fewer = (taped(how, leaves_out=less) for less in (False, True))
    assert short == ([] if num_left_out is None else [num_left_out])
    assert_same_tape(rounds.put_rounds(fewer), whole)


class Keeping(Looping):
    """Lets its way of going round keep what it makes in the module."""

    def __init__(self, how):
        super().__init__(how)
        self.rows, self.num = [], 0
        self.held = SimpleNamespace(rows={}, last=None, states=deque())
        self.held.layers = [SimpleNamespace(rows=[])]

    def forward(self, x):
        return self.how(self, self.layer(x))


class Slotted:
    """Has no dictionary of its attributes."""

    __slots__ = ("num",)


ROWS = []


def kept_in_a_list_of_the_module(model, x):
    for i in range(len(x)):
        model.rows.append(torch.tanh(x[i]))
    return torch.stack(model.rows).sum()


def counted_by_the_module(model, x):
    for i in range(len(x)):
        model.num += torch.tanh(x[i]).dim()
    return torch.cat([x] * model.num).sum()


def kept_in_an_object_of_the_module(model, x):
    for i in range(len(x)):
        model.held.rows[i] = torch.tanh(x[i])
    return torch.stack(list(model.held.rows.values())).sum()


def kept_in_a_layer_of_a_cache(model, x):
    for i in range(len(x)):
        model.held.layers[0].rows.append(torch.tanh(x[i]))
    return torch.stack(model.held.layers[0].rows).sum()


def kept_in_no_plain_list(model, x):
    for i in range(len(x)):
        model.held.states.append(torch.tanh(x[i]))
    return torch.stack(list(model.held.states)).sum()


def growing_in_the_module(model, x):
    state = model.held.last = x[0]
    for i in range(len(x)):
        model.held.last = x[: i + 1]
        state = torch.tanh(x[i] * state)
    return (model.held.last.sum() * state * x).sum()


def counted_in_a_slot(_, x):
    held = Slotted()
    held.num = 0
    for i in range(len(x)):
        held.num += torch.tanh(x[i]).dim()
    return torch.cat([x] * held.num).sum()


def kept_in_a_file(_, x):
    ROWS.clear()
    for i in range(len(x)):
        state = torch.tanh(x[i])
        ROWS.append(state)
    return torch.stack(ROWS).sum()


def kept_one_by_the_module(model, x):
    model.held.last = x[:1]
    for i in range(len(x)):
        model.held.last = model.layer(torch.tanh(x[i : i + 1] * model.held.last))
    return (model.held.last * x).sum()


@pytest.mark.parametrize(
    ("how", "num_left_out"),
    [
        (kept_in_a_list_of_the_module, 0),
        (counted_by_the_module, 0),
        (kept_in_an_object_of_the_module, 0),
        (kept_in_a_layer_of_a_cache, 0),
        (kept_in_no_plain_list, 0),
        (growing_in_the_module, 0),
        (counted_in_a_slot, 0),
        (kept_in_a_file, 0),
        (kept_one_by_the_module, 3),
    ],
)
def test_what_objects_hold_is_held(how, num_left_out, short):
    whole, fewer = (taped(how, leaves_out=less, kind=Keeping) for less in (False, True))
    assert short == [num_left_out]
    assert_same_tape(rounds.put_rounds(fewer), whole)


def keeping(rows):
    while True:
        rows.append((yield rows))


def kept_elsewhere(x):
    held = keeping([])
    next(held)
    for i in range(len(x)):
        held.send(torch.tanh(x[i]))
    return (torch.stack(next(held)[:-1]) * x).sum()


def unlike_backward(x):
    state, rows = x[0], []
    for i in range(len(x)):
        state = torch.tanh(x[i] * state) if i % 2 else torch.tanh(state * x[i])
        rows.append(state)
    return torch.stack(rows[: -rounds.NUM_TOLD]).sum() + torch.stack(rows[::2]).sum()


def test_a_program_that_misses_rounds_is_run_with_all(short):
    with pytest.raises(rounds.UnlikeRoundsError, match="misses rounds"):
        taped(kept_elsewhere, leaves_out=True)
    assert short == [3]


def test_rounds_that_differ_backward_are_no_copies(short):
    fewer = taped(unlike_backward, leaves_out=True)
    assert short == [3]
    with pytest.raises(rounds.UnlikeRoundsError, match="of a loop"):
        rounds.put_rounds(fewer)


def sized_by_a_stop(x):
    numbers = range(2, len(x))
    return x[: numbers.stop].sum() + x[numbers.index(5)].sum() + x[numbers == range(2)].sum()


def sampled(x):
    numbers = random.sample(range(len(x)), 3)
    return sum(x[i].sum() for i in sorted(numbers, reverse=True)) * len(range(*(0, len(x))))


@pytest.mark.parametrize("how", [sized_by_a_stop, sampled])
def test_what_is_no_loop_has_a_range(how, short):
    whole, fewer = (taped(how, leaves_out=less) for less in (False, True))
    assert not short
    assert len(fewer.events) == len(whole.events)


def fails_behind_a_loop(x):
    state = x[0]
    for i in range(len(x)):
        state = torch.tanh(x[i] * state) + i * [1, 0][i % 2] / 0
    return state.sum()


def test_any_error_of_a_loop_that_is_watched_is_seen_again_with_all_rounds(short):
    with pytest.raises(rounds.UnlikeRoundsError):
        taped(fails_behind_a_loop, leaves_out=True)
    assert not short


@pytest.mark.parametrize(
    ("source", "may_be_watched"),
    [
        ("def f(n):\n    for i in range(n):\n        g(i)\n", True),
        ("def f(n):\n    for i in range(n):\n        g(isinstance(n, range))\n", False),
        ("def f(n):\n    for i in range(n):\n        g(type(n) is range)\n", False),
        ("def f(n):\n    return [i for i in range(n)]\n", False),
        ("def f(n):\n    for i in map(range, n):\n        g(i)\n", False),
        ("def f(n):\n    for i in zip(n, range(n)):\n        g(i)\n", False),
        ("def f(arrange):\n    return arrange\n", False),
    ],
)
def test_only_files_that_loop_and_ask_nothing_else_of_the_name_are_watched(source, may_be_watched):
    assert rounds.only_loops(source) is may_be_watched


ASKING = """
import torch
from torch import nn

class Asking(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        x, rows = self.layer(x), range(len(x))
        assert isinstance(rows, range)
        state = x[0]
        for i in range(len(x)):
            state = torch.tanh(x[i] * state)
        return (state * x).sum()
"""


def test_a_file_that_asks_what_a_range_is_is_answered(short, tmp_path, monkeypatch):
    (tmp_path / "asks_of_ranges.py").write_text(ASKING)
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = importlib.import_module("asks_of_ranges").Asking
    whole, fewer = (taped(None, leaves_out=less, kind=kind) for less in (False, True))
    assert not short
    assert_same_tape(fewer, whole)


def test_what_a_library_gives_to_all_classes_is_not_watched():
    model = read_config("tiny", {**SIZES, **MODELS["mamba"], "model_type": "mamba"})
    skeleton = build_skeleton(make_job(model=model), make_strategy(attention="eager"))
    files = [file.__name__ for file in rounds._looping_files(skeleton)]
    assert files == ["transformers.models.mamba.modeling_mamba"]
