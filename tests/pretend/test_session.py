"""``pretend.gpu``: what stands after the block, what it refuses, and that it leaves nothing."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from brimful import pretend
from brimful.errors import InputError, UnknownNameError
from brimful.pretend.report_values import PRETEND_SCHEMA
from brimful.values.results import GRADIENTS, OPTIMIZER_STATE, PARAMETERS

pytestmark = pytest.mark.torch

WIDTH = 256


def step(device, optimizer=torch.optim.AdamW, *, num=1, **settings):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(device)
    optimizer = optimizer(model.parameters(), **settings)
    for _ in range(num):
        model(torch.randn(8, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_a_run_knows_its_peak_and_its_report():
    with pretend.gpu("t4", imitate="cpu", says_cuda=False) as run:
        step("gpu:0")
    assert run.peak_allocated_bytes == run.recording().live_bytes().max()
    report = run.report(budget_bytes=2**30)
    assert report.schema == PRETEND_SCHEMA
    assert report.simulated_peak_allocated_bytes == run.peak_allocated_bytes
    assert report.fits
    items = {item.name: item.num_bytes for item in report.items}
    weights = 4 * 2 * (WIDTH * WIDTH + WIDTH)
    assert items[PARAMETERS] == items[GRADIENTS] == weights
    assert items[OPTIMIZER_STATE] >= 2 * weights


def test_a_budget_is_what_the_allocator_may_take():
    with pretend.gpu("t4", says_cuda=False) as run:
        kept = torch.empty(3 * 2**20, device="gpu:0")
    assert not run.report(budget_bytes=2**20).fits
    assert run.report(budget_bytes=20 * 2**20).fits
    del kept
    with pytest.raises(InputError, match="budget of 0 bytes"):
        run.report(budget_bytes=0)
    with pytest.raises(InputError, match="expandable"):
        run.report(allocator="expandable_segment:True")


def test_it_decorates():
    run = pretend.gpu("t4", says_cuda=True)

    @run
    def train(num):
        step("cuda", num=num)
        return num

    assert train(2) == 2
    assert run.peak_allocated_bytes > 0
    assert run.recording().phases[-1] == "step 2 optimizer"


def test_every_call_of_what_it_decorates_is_its_own():
    run = pretend.gpu("t4", imitate="cpu", says_cuda=False)
    assert run.peaks_allocated_bytes == ()

    @run
    def allocate(num_bytes):
        torch.empty(num_bytes, dtype=torch.uint8, device="gpu:0")

    for num_bytes in (3000, 8000, 1000):
        allocate(num_bytes)
        assert run.peak_allocated_bytes == num_bytes
    assert run.report().simulated_peak_allocated_bytes == 1000
    assert len(run.recording().events) == 2
    assert run.peaks_allocated_bytes == (3000, 8000, 1000)
    with run:
        torch.empty(500, dtype=torch.uint8, device="gpu:0")
    assert run.peaks_allocated_bytes == (3000, 8000, 1000, 500)


def test_a_later_call_that_puts_nothing_on_the_gpu_fails():
    run = pretend.gpu("t4", says_cuda=False)

    @run
    def allocate(device):
        torch.empty(1000, device=device)

    allocate("gpu:0")
    with pytest.raises(InputError, match="0 bytes were allocated on the pretend GPU"):
        allocate("cpu")


@pytest.mark.parametrize(("says_cuda", "place"), [(False, "gpu:0"), (True, "cuda")])
def test_a_run_that_puts_nothing_on_the_gpu_fails(says_cuda, place):
    said = f"0 bytes were allocated on the pretend GPU; put the model on {place}"
    with pytest.raises(InputError, match=said), pretend.gpu("t4", says_cuda=says_cuda):
        step("cpu")


def test_what_the_program_raises_is_not_hidden_by_that():
    with pytest.raises(ZeroDivisionError), pretend.gpu("t4", says_cuda=False):
        raise ZeroDivisionError


def test_bad_names_and_ranks_are_refused():
    with pytest.raises(UnknownNameError, match=r"did you mean .*h100-80gb"):
        pretend.gpu("h100-8gb", says_cuda=False)
    with pytest.raises(InputError, match="rank 8 is not in a world of 8; use 0 to 7"):
        pretend.gpu("t4", world_size=8, rank=8, says_cuda=False)


@pytest.mark.parametrize(("imitate", "num_alive"), [("cuda", 4), ("cpu", 1)])
def test_an_optimizer_works_on_lists_where_a_card_would(imitate, num_alive):
    """AdamW's denominators: all at once with foreach, one after another on a CPU."""
    with pretend.gpu("h100-80gb", imitate=imitate, says_cuda=False) as run:
        step("gpu:0")
    recording = run.recording()
    roots = {i for i, op in enumerate(recording.ops) if "sqrt" in op}
    rows = [i for i, op in enumerate(recording.op) if op in roots]
    assert len(rows) == 4
    alive = [sum(recording.born[j] <= recording.born[i] < recording.died[j] for j in rows)
             for i in rows]  # fmt: skip
    assert max(alive) == num_alive


def test_nothing_of_it_is_left():
    swap, types = torch.utils.swap_tensors, list(optimizers._foreach_supported_types)
    with pretend.gpu("t4", imitate="cpu", says_cuda=True, world_size=2):
        step("cuda")
        assert FakeTensor in optimizers._foreach_supported_types
    assert torch.utils.swap_tensors is swap
    assert optimizers._foreach_supported_types == types
    assert "cuda" in optimizers._get_foreach_kernels_supported_devices()
    assert not dist.is_initialized()
    assert not isinstance(torch.ones(1), FakeTensor)
    assert "HF_DEACTIVATE_ASYNC_LOAD" not in os.environ


def test_data_parallel_holds_its_buckets_beside_the_gradients():
    def peak(wrap):
        with pretend.gpu("t4", world_size=2, imitate="cpu", says_cuda=False) as run:
            model = wrap(nn.Linear(WIDTH, WIDTH).to("gpu:0"))
            for _ in range(2):
                model(torch.randn(8, WIDTH, device="gpu:0")).sum().backward()
        return run.peak_allocated_bytes

    weights = 4 * (WIDTH * WIDTH + WIDTH)
    more = peak(lambda m: DistributedDataParallel(m, device_ids=[0])) - peak(lambda m: m)
    assert weights <= more <= 1.05 * weights


def test_ddp_finds_unused_parameters():
    # As Hugging Face's Trainer asks for where it recomputes nothing.
    def peak(**how):
        with pretend.gpu("h100-80gb", world_size=4) as run:
            dist.init_process_group("nccl")
            model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH).to("cuda"), **how)
            for _ in range(2):
                model(torch.randn(8, WIDTH, device="cuda")).sum().backward()
            dist.destroy_process_group()
        return run.peak_allocated_bytes

    flags = 512  # a block for two flags, and one for their number's copies
    assert 0 <= peak(find_unused_parameters=True) - peak() <= 2 * flags
