"""What the tape says beside sizes: streams, nodes, lines, hosts, several devices, and values."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.pretend.programs import PROGRAMS, mlp, train
from torch import nn

from brimful import pretend
from brimful.errors import UnsupportedError
from brimful.pretend.recording import NEVER
from brimful.pretend.recording_builder import AHEAD

pytestmark = pytest.mark.torch

GPU, OTHER = "gpu:0", "gpu:1"
KILO, MEGA = 2**10, 2**20
CARD = "t4"


@pytest.fixture
def run():
    with pretend.gpu(CARD, imitate="cpu", says_cuda=False) as made:
        yield made
        torch.empty(1, device=GPU)


def row(recording, num_bytes):
    (found,) = np.flatnonzero(recording.num_bytes == num_bytes).tolist()
    return found


def test_an_allocation_is_on_the_stream_that_was_current(run):
    side = torch.gpu.Stream()
    kept = [torch.empty(KILO, device=GPU)]
    with torch.gpu.stream(side):
        kept.append(torch.empty(2 * KILO, device=GPU))
    kept.append(torch.empty(3 * KILO, device=GPU))
    recording = run.recording()
    streams = [recording.stream[row(recording, 4 * n * KILO)] for n in (1, 2, 3)]
    assert streams == [0, side.stream_id, 0]
    assert side.stream_id


def test_what_another_stream_uses_is_free_when_the_host_has_waited(run):
    x, y = torch.empty(KILO, device=GPU), torch.empty(2 * KILO, device=GPU)
    x.record_stream(torch.gpu.Stream())
    y.record_stream(torch.gpu.current_stream())
    del x, y
    late = torch.empty(3 * KILO, device=GPU)
    torch.gpu.synchronize()
    del late
    recording = run.recording()
    used, alone = row(recording, 4 * KILO), row(recording, 8 * KILO)
    assert recording.died[used] == 2
    # Both were freed and one was made (5 events) before the host waited.
    assert recording.in_use_until[used] == 5
    assert recording.in_use_until[alone] == 0


def until(run):
    """Free an allocation that another stream uses; return what tells from when on it is free."""
    x = torch.empty(7 * KILO, device=GPU)
    x.record_stream(torch.gpu.Stream())
    del x
    return lambda: int(run.recording().in_use_until[row(run.recording(), 28 * KILO)])


NO_LAUNCHES = {"view": lambda y: y[:8], "empty": torch.empty_like, "aside": lambda _: torch.ones(4)}
WAITS = {
    "value": lambda y: y.sum().item(),
    "truth": lambda y: bool((y > 0).any()),
    "equal": lambda y: torch.equal(y, y),
    "to host": lambda y: y.to("cpu"),
    "from host": lambda y: y.copy_(torch.zeros(KILO)),
}


@pytest.mark.parametrize("how", WAITS.values(), ids=WAITS)
def test_the_host_waits_for_a_value_and_a_blocking_copy(run, how):
    y = torch.zeros(KILO, device=GPU)
    known = until(run)
    how(y)
    num_events = len(run.recording().events)
    y + 1
    assert known() <= num_events


def test_a_copy_that_does_not_block_lets_nobody_wait(run):
    y = torch.zeros(KILO, device=GPU)
    known = until(run)
    y.copy_(torch.zeros(KILO), non_blocking=True)
    y.to("cpu", non_blocking=True)
    assert known() > len(run.recording().events)


def test_a_stream_holds_so_many_launches_and_no_more(run):
    """With an operation after another one, the host is at most ``AHEAD`` of them ahead."""
    y = torch.zeros(KILO, device=GPU)
    known = until(run)
    for _ in range(AHEAD - 1):
        y.add_(1)
        for nothing in NO_LAUNCHES.values():
            nothing(y)
    assert known() > len(run.recording().events)
    y.add_(1)
    assert known() == len(run.recording().events)


def test_an_allocation_knows_its_node_and_its_line(run):
    x = torch.empty(KILO, device=GPU, requires_grad=True)
    y = x.exp()
    y.sum().backward()
    recording = run.recording()
    nodes = {
        recording.nodes[node]: recording.ops[op]
        for node, op in zip(recording.node, recording.op, strict=True)
    }
    assert nodes["ExpBackward0"].startswith("aten.mul")
    source = Path(__file__).read_text("utf-8").splitlines()
    made = [i for i, op in enumerate(recording.op) if recording.ops[op] == "aten.exp.default"]
    file, _, number = recording.lines[recording.line[made[0]]].rpartition(":")
    assert file == __file__
    assert source[int(number) - 1].strip() == "y = x.exp()"


def test_host_and_every_device_have_recordings_of_their_own():
    with pretend.gpu(CARD, imitate="cpu", says_cuda=False) as run:
        first, host = torch.empty(KILO, device=GPU), torch.empty(2 * KILO)
        second = first.to(OTHER)
        third = torch.empty(3 * KILO, device=OTHER)
        assert str(third.device) == str(second.device) == OTHER
    assert run.recording().num_bytes.tolist() == [4 * KILO]
    assert run.recording("cpu").num_bytes.tolist() == [8 * KILO]
    assert run.recording(OTHER).num_bytes.tolist() == [4 * KILO, 12 * KILO]
    del host


def test_a_model_over_two_devices_has_its_halves_there():
    def both(*devices):
        with pretend.gpu(CARD, imitate="cpu", says_cuda=False) as run:
            first, second = (mlp(device, depth=1) for device in devices)
            x = torch.empty(64, 256, device=devices[0])
            second(first(x).to(devices[1])).sum().backward()
        return [run.recording(where) for where in sorted(set(devices))]

    halves = both(GPU, OTHER)
    (whole,) = both(GPU, GPU)
    assert sum(int(half.num_bytes[half.died == NEVER].sum()) for half in halves) == int(
        whole.num_bytes[whole.died == NEVER].sum()
    )
    assert max(int(half.live_bytes().max()) for half in halves) < whole.live_bytes().max()


def test_memory_queries_are_answered_from_the_tape(run):
    x = torch.empty(MEGA, device=GPU)
    y = torch.empty(MEGA, device=GPU)
    del y
    assert torch.gpu.memory_allocated() == 4 * MEGA
    assert torch.gpu.max_memory_allocated() == 8 * MEGA == run.peak_allocated_bytes
    torch.gpu.reset_peak_memory_stats()
    assert torch.gpu.max_memory_allocated(GPU) == 4 * MEGA
    assert torch.gpu.max_memory_allocated(OTHER) == torch.gpu.memory_allocated(1) == 0
    free, total = torch.gpu.mem_get_info()
    assert free <= total == torch.gpu.get_device_properties(0).total_memory == run.card.usable_bytes
    torch.gpu.empty_cache()
    assert run.recording().cache_flushes.tolist() == [3]
    del x


def test_numbers_are_served_where_memory_does_not_hang_on_them(run):
    x = torch.empty(8, device=GPU)
    assert x.sum().item() == 0.0
    assert x.sum().long().item() == 1
    assert not x.isnan().any()
    assert float(x.mean()) == 0.0
    assert torch.ones(3, dtype=torch.int64, device=GPU).sum().item() == 3
    assert run.recording().num_bytes[0] == 32


def test_a_size_that_values_decide_ends_the_run_with_one_sentence(run):
    x = torch.empty(8, 4, device=GPU)
    with pytest.raises(UnsupportedError, match=r"aten\.nonzero\.default") as raised:
        x.relu().nonzero()
    said = str(raised.value)
    assert re.match(rf"{re.escape(__file__)}:\d+ calls", said)
    assert "--assume-all-selected" in said
    assert "\n" not in said
    assert run.tape.assumptions == set()


def test_a_size_that_values_decide_is_the_largest_where_that_is_assumed():
    with pretend.gpu(CARD, assume_all_selected=True, says_cuda=False) as run:
        x = torch.randn(8, 4, device=GPU)
        assert x.nonzero().shape == (32, 2)
        assert x[x > 0].shape == (32,)
        assert x.masked_select(x[:1] > 0).shape == (32,)
    assert len(run.tape.assumptions) == 3


def test_what_a_hook_raises_comes_through_the_engine(run):
    def fail(_grad):
        raise LookupError("said in a hook")

    def hooked(place):
        x = torch.empty(4, device=GPU, requires_grad=True)
        y = x * 2
        place(x, y)
        with pytest.raises(LookupError, match="said in a hook"):
            y.sum().backward()

    hooked(lambda _, y: y.register_hook(fail))
    hooked(lambda x, _: x.register_post_accumulate_grad_hook(fail))
    hooked(lambda _, y: y.grad_fn.register_prehook(fail))
    x = torch.empty(4, device=GPU, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad is not None
    assert run.peak_allocated_bytes


def test_a_storage_that_grows_is_copied_before_the_old_one_is_freed(run):
    x = torch.empty(KILO, device=GPU)
    x.resize_(2 * KILO)
    out = torch.empty(0, device=GPU)
    torch.add(x, x, out=out)
    recording = run.recording()
    assert recording.live_bytes().tolist()[:3] == [4 * KILO, 12 * KILO, 8 * KILO]
    assert recording.live_bytes()[-1] == 16 * KILO
    assert torch.gpu.memory_allocated() == 16 * KILO


@pytest.mark.parametrize("is_built_before", [False, True])
@pytest.mark.parametrize("to", [nn.Module.to, lambda model, _: model.gpu()])
def test_a_module_moves_to_the_gpu(is_built_before, to):
    def build():
        return nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64), nn.BatchNorm1d(64))

    model = build() if is_built_before else None
    with pretend.gpu(CARD, imitate="cpu", says_cuda=False) as run:
        model = to(model or build(), GPU)
        num_bytes = sum(x.nbytes for x in (*model.parameters(), *model.buffers()))
        assert {str(x.device) for x in model.parameters()} == {GPU}
        assert torch.gpu.memory_allocated() == num_bytes
        ids = torch.zeros(8, dtype=torch.int64, device=GPU)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), ids)
    host = run.recording("cpu")
    alive = int(host.live_bytes()[-1]) if len(host.events) else 0
    assert alive == 0
    made = 0 if is_built_before else num_bytes
    assert int(host.live_bytes().max(initial=0)) == made


def kernels_of_a_norm(imitate, dtype):
    with pretend.gpu("h100-80gb", imitate=imitate, says_cuda=False) as run:
        norm = nn.RMSNorm(256, dtype=torch.float32, device=GPU)
        x = torch.empty(64, 256, dtype=dtype, device=GPU, requires_grad=True)
        norm(x).sum().backward()
    recording = run.recording()
    names = (recording.ops[op].split(".") for op in recording.op)
    return {name[1] for name in names if name[0] == "aten"}


def test_an_rms_norm_is_one_kernel_on_cuda_and_several_operations_on_a_cpu():
    fused = {"_fused_rms_norm", "_fused_rms_norm_backward"}
    assert fused <= kernels_of_a_norm("cuda", torch.float32)
    assert "rsqrt" not in kernels_of_a_norm("cuda", torch.float32)
    assert not fused & kernels_of_a_norm("cpu", torch.float32)
    assert "rsqrt" in kernels_of_a_norm("cpu", torch.float32)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_an_rms_norm_of_two_types_is_written_out_on_cuda_too():
    assert "rsqrt" in kernels_of_a_norm("cuda", torch.bfloat16)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["plain_mlp", "resized_storages", "tensors_used_many_times"])
def test_a_recording_without_rows_is_that_of_a_program_that_never_made_them(name, seed):
    with pretend.gpu(CARD, imitate="cpu", says_cuda=False) as run:
        PROGRAMS[name](GPU)
        torch.gpu.empty_cache()
    whole = run.recording()
    whole = replace(whole, marks=np.arange(0, len(whole.events) + 1, 3))
    rows = np.random.default_rng(seed).random(len(whole.num_bytes)) < 0.4
    rest = whole.without(rows)
    # The law: at every event that stays, what is alive is less by the left out rows' bytes.
    of_event = np.where(whole.events >= 0, whole.events, ~whole.events)
    stays = ~rows[of_event]
    sign = np.where(whole.events >= 0, 1, -1)
    dropped = np.cumsum(sign * whole.num_bytes[of_event] * rows[of_event])
    assert rest.live_bytes().tolist() == (whole.live_bytes() - dropped)[stays].tolist()
    assert rest.num_bytes.tolist() == whole.num_bytes[~rows].tolist()
    for column in ("phase_starts", "marks", "cache_flushes"):
        for before, after in zip(getattr(whole, column), getattr(rest, column), strict=True):
            assert after == stays[:before].sum()
    for i in range(len(rest.num_bytes)):
        assert rest.events[rest.born[i]] == i
        assert rest.died[i] == NEVER or rest.events[rest.died[i]] == ~i
