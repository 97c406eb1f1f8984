"""What of the DeepSpeed engine needs no DeepSpeed: its refusals, and what is held for measuring."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from brimful.build.assemble import build_program
from brimful.build.deepspeed import held
from brimful.build.deepspeed.engine import EngineRoot, _check_types
from brimful.build.deepspeed.whole import is_parted
from brimful.errors import UnsupportedError
from brimful.techniques.runnable import check_strategy
from brimful.train import loop
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
ALONE = {"engine": "deepspeed", "zero": 2, "dp_shard": 1}


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is not None, reason="DeepSpeed is installed here"
)
def test_without_deepspeed_it_says_what_to_install():
    job = make_job()
    with pytest.raises(UnsupportedError, match=r"pip install 'brimful\[deepspeed\]'"):
        build_program(job, check_strategy(job, make_strategy(**ALONE)), CPU)


def test_a_model_in_two_types_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    _check_types(model[:1], make_job(precision="fp32"))
    with pytest.raises(UnsupportedError, match=r"1\.weight"):
        _check_types(model, make_job(precision="fp32"))
    with pytest.raises(UnsupportedError, match=r"0\.weight"):
        _check_types(model, make_job(precision="bf16-master"))


@pytest.mark.parametrize(
    ("precision", "computed"), [("bf16-mixed", torch.bfloat16), ("fp32", torch.float32)]
)
def test_the_recipes_context_is_entered_inside_what_deepspeed_calls(precision, computed):
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, _program, batch, _num_targets):
            return self.layer(batch)

    root = EngineRoot(Inner(), make_job(precision=precision), CPU)
    with torch.autocast("cpu", enabled=False):  # what DeepSpeed does to one that is not its own
        assert root(None, torch.ones(1, 3), 1).dtype == computed


def test_placeholders_of_parted_parameters_are_told_apart():
    whole, parted = nn.Parameter(torch.ones(3)), nn.Parameter(torch.empty(0))
    parted.ds_id, parted.ds_tensor = 0, torch.ones(2)
    assert not is_parted([whole])
    assert is_parted([whole, parted])
    model = nn.Module()
    model.a, model.b = whole, parted
    assert [p.numel() for p in held.parameters(model)] == [3, 2]


def test_gradients_are_found_wherever_they_lie():
    model, piece = nn.Linear(2, 1, bias=False), torch.zeros(2)
    model.weight.grad, piece.grad = torch.ones(1, 2), torch.full((2,), 3.0)
    optimizer = SimpleNamespace(
        averaged_gradients={0: [torch.full((2,), 2.0), None], 1: None},
        single_partition_of_fp32_groups=[piece],
    )
    engine = SimpleNamespace(optimizer=optimizer)
    assert [float(g.max()) for g in held.gradients(engine, model)] == [1.0, 3.0, 2.0]
    assert list(held.flat_pieces(engine)) == [piece]


def test_a_run_that_keeps_no_checkpoints_is_not_resumed():
    asked = SimpleNamespace(resume=True)
    loop._check_resumable(SimpleNamespace(strategy=make_strategy()), asked)
    with pytest.raises(UnsupportedError, match="keeps no checkpoints"):
        loop._check_resumable(SimpleNamespace(strategy=make_strategy(**ALONE)), asked)
