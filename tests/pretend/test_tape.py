"""Facts about the tape, each seen on a module made for it by hand."""

import gc

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.modules import module as hooks
from torch.utils.checkpoint import checkpoint

from brimful.pretend import autocast, device
from brimful.pretend.recording import NEVER
from brimful.pretend.tape import Tape
from brimful.values.results import WORKSPACES

pytestmark = pytest.mark.torch

GPU = "gpu:0"
KILO = 1024


@pytest.fixture(autouse=True)
def _gpu():
    device.register()


def record(program, *, count_costs=False):
    tape = Tape(count_costs=count_costs)
    with FakeTensorMode(allow_non_fake_inputs=True), tape:
        program(tape)
        return tensors_only(tape.finish())


def tensors_only(recording):
    """Leave out what kernels take for themselves."""
    workspace = np.array([item == WORKSPACES for item in recording.items])
    return recording.without(workspace[recording.item])


def sizes(recording):
    return [
        int(recording.num_bytes[e]) if e >= 0 else -int(recording.num_bytes[~e])
        for e in recording.events.tolist()
    ]


def test_an_allocation_and_its_free_are_two_events():
    def program(tape):
        x = torch.empty(KILO, device=GPU)
        y = torch.empty(3, dtype=torch.bfloat16, device=GPU)
        del x
        tape.begin_phase("later")
        del y

    recording = record(program)
    assert sizes(recording) == [4 * KILO, 6, -4 * KILO, -6]
    assert recording.live_bytes().tolist() == [4 * KILO, 4 * KILO + 6, 6, 0]
    assert recording.phase_starts.tolist() == [0, 3]
    assert recording.phases == ("load", "later")
    assert recording.shapes == (("[1024]", "float32"), ("[3]", "bfloat16"))


def test_what_is_alive_at_the_end_was_never_freed():
    kept = []
    recording = record(lambda _: kept.append(torch.empty(KILO, device=GPU)))
    assert recording.died.tolist() == [NEVER]
    assert recording.alive_at(0).tolist() == [0]


def test_views_and_in_place_operations_allocate_nothing():
    def program(_):
        x = torch.empty(8, KILO, device=GPU)
        y = x.view(KILO, 8).t()[2:].unsqueeze(0)
        y.add_(1).mul_(2)
        x.detach().zero_()

    assert sizes(record(program)) == [32 * KILO, -32 * KILO]


def test_a_view_keeps_its_whole_storage_alive():
    def program(tape):
        x = torch.empty(8, KILO, device=GPU)
        row = x[0]
        del x
        tape.begin_phase("row")
        del row

    recording = record(program)
    assert recording.died.tolist() == [1]
    assert recording.phase_starts.tolist() == [0, 1]


def test_host_tensors_are_not_recorded():
    def program(_):
        host = torch.zeros(KILO, device="cpu")
        host.to(GPU)

    assert sizes(record(program)) == [4 * KILO, -4 * KILO]


def test_several_results_of_one_operation_are_each_recorded():
    recording = record(lambda _: torch.empty(KILO, device=GPU).topk(5))
    assert sorted(sizes(recording)) == sorted([4 * KILO, 20, 40, -4 * KILO, -20, -40])


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16, bias=False)
        self.second = nn.Linear(16, 8, bias=False)

    def forward(self, x):
        return self.second(functional.silu(self.first(x)))


def owners(recording, *, phase):
    rows = (recording.phase == recording.phases.index(phase)).nonzero()[0].tolist()
    return [
        (recording.owners[recording.owner[i]], recording.ops[recording.op[i]].split(".")[1])
        for i in rows
    ]


def step(tape, model, x):
    tape.begin_phase("forward")
    loss = model(x).sum()
    tape.begin_phase("backward")
    loss.backward()


def trained(make, num_rows=4):
    """Record forward and backward of a module on the pretend GPU."""
    model = make()

    def program(tape):
        model.to_empty(device=GPU)
        tape.name_modules(model)
        step(tape, model, torch.empty(num_rows, 8, device=GPU))

    with torch.device("meta"):
        model = make()
    return record(program)


def test_forward_allocations_are_owned_by_the_innermost_module():
    assert owners(trained(Pair), phase="forward") == [
        ("first", "mm"),
        ("", "silu"),
        ("second", "mm"),
        ("", "sum"),
    ]


def test_backward_allocations_are_owned_by_the_module_whose_forward_made_the_node():
    seen = owners(trained(Pair), phase="backward")
    assert ("second", "mm") in seen
    assert ("first", "mm") in seen
    assert ("", "silu_backward") in seen
    assert seen.index(("second", "mm")) < seen.index(("", "silu_backward"))
    assert seen.index(("", "silu_backward")) < seen.index(("first", "mm"))
    weight_grads = [name for name, op in seen if op == "mm"]
    assert weight_grads.count("first") == 1
    assert weight_grads.count("second") == 2


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = Pair()
        self.two = Pair()

    def forward(self, x):
        x = checkpoint(self.one, x, use_reentrant=False, preserve_rng_state=False)
        return checkpoint(self.two, x, use_reentrant=False, preserve_rng_state=False)


def test_recomputation_is_owned_by_the_recomputed_block_and_frees_what_forward_made():
    recording = trained(Recomputed)
    seen = owners(recording, phase="backward")
    assert {name.partition(".")[0] for name, _ in seen} <= {"one", "two", ""}
    assert seen.index(("two.first", "mm")) < seen.index(("one.first", "mm"))
    for block in ("one", "two"):
        assert (block, "silu") in seen
        assert (block, "silu_backward") in seen
    forward_end = int(recording.phase_starts[recording.phases.index("backward")])
    alive = recording.alive_at(forward_end - 1)
    assert "silu" not in {recording.ops[recording.op[i]].split(".")[1] for i in alive}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 + x.new_zeros(x.shape)


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8, bias=False)
        self.scaling = Scaling()

    def forward(self, x):
        return self.scaling(self.linear(x))


class Scaling(nn.Module):
    def forward(self, x):
        return Doubled.apply(x)


def test_a_custom_function_is_recorded_forward_and_backward():
    recording = trained(Custom)
    assert ("scaling", "mul") in owners(recording, phase="forward")
    backward = owners(recording, phase="backward")
    assert ("scaling", "mul") in backward
    assert ("scaling", "new_zeros") in backward


def test_module_names_cover_modules_that_were_not_named():
    def program(tape):
        tape.begin_phase("forward")
        nn.Sequential(nn.Linear(4, 4, device=GPU))(torch.empty(1, 4, device=GPU))

    assert ("Sequential.Linear", "addmm") in owners(record(program), phase="forward")


def test_tags_count_storages_in_a_class():
    def program(tape):
        x = torch.empty(4, device=GPU)
        torch.empty(5, device=GPU)
        tape.tag([x.view(2, 2)], "parameters")

    recording = record(program)
    assert [recording.items[i] for i in recording.item] == ["parameters", ""]


class Failing(nn.Module):
    def forward(self, x):
        raise ValueError(x.shape)


def num_hooks():
    pre = len(hooks._global_forward_pre_hooks)
    return pre, len(hooks._global_forward_hooks), len(autocast.on_weight_cast)


def test_an_exception_leaves_no_hooks_modes_or_settings_behind():
    before = num_hooks()
    model = nn.Sequential(nn.Identity(), Failing())
    tape = Tape()
    with tape:
        assert num_hooks() == tuple(n + 1 for n in before)
    with (
        pytest.raises(ValueError, match="4"),
        FakeTensorMode(allow_non_fake_inputs=True),
        tape,
    ):
        model(torch.empty(4, device=GPU))
    assert num_hooks() == before
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.autograd.is_multithreading_enabled()
    assert tape.owners._stack == []


def test_a_failed_forward_inside_the_tape_leaves_owners_right():
    model = nn.Sequential(nn.Identity(), Failing())
    fine = nn.Linear(4, 4, bias=False, device="meta")

    def program(tape):
        fine.to_empty(device=GPU)
        tape.name_modules(fine, "fine")
        x = torch.empty(1, 4, device=GPU)
        with pytest.raises(ValueError, match="4"):
            model(x)
        tape.begin_phase("forward")
        fine(x)
        torch.empty(1, device=GPU)

    assert owners(record(program), phase="forward") == [("fine", "mm"), ("", "empty")]


def test_costs_are_recorded_only_when_asked_for():
    def program(_):
        x = torch.empty(4, 8, device=GPU)
        (x @ x.t()).relu()

    assert record(program).costs == ()
    costs = {cost.op: cost for cost in record(program, count_costs=True).costs}
    assert costs["aten.mm.default"].matrix_flops == 2 * 4 * 8 * 4
    assert costs["aten.relu.default"].moved_bytes == (64, 64)
    assert "aten.t.default" not in costs


def test_a_broadcast_dimension_is_read_once():
    def program(_):
        x = torch.empty(4, 1, device=GPU).expand(4, 100)
        x + x

    costs = {cost.op: cost for cost in record(program, count_costs=True).costs}
    assert costs["aten.add.Tensor"].moved_bytes == (16, 16, 1600)


def test_dropped_cycles_are_freed_when_the_collector_finds_them():
    def program(tape):
        cycle = [torch.empty(KILO, device=GPU)]
        cycle.append(cycle)
        tape.begin_phase("dropped")
        del cycle
        gc.collect()

    assert sizes(record(program)) == [4 * KILO, -4 * KILO]


def test_the_pretend_gpu_computes_nothing_outside_a_fake_mode():
    with pytest.raises(NotImplementedError):
        torch.ones(2, device=GPU)


def real_sums(num_uses):
    """How often autograd adds out of place and in place on a real CPU, by the profiler."""
    weight = torch.randn(256, 256, requires_grad=True)
    x = torch.randn(64, 256)
    loss = sum((x @ weight).sum() for _ in range(num_uses))
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        loss.backward()
    counts = {event.key: event.count for event in profiler.key_averages()}
    return counts.get("aten::add", 0), counts.get("aten::add_", 0)


@pytest.mark.parametrize("num_uses", [2, 3, 8])
def test_gradients_of_one_tensor_add_up_in_place_where_they_really_do(num_uses):
    def program(tape):
        weight = torch.empty(256, 256, device=GPU, requires_grad=True)
        x = torch.empty(64, 256, device=GPU)
        loss = sum((x @ weight).sum() for _ in range(num_uses))
        tape.begin_phase("backward")
        loss.backward()

    recording = record(program, count_costs=True)
    start = int(recording.phase_starts[1])
    ops = [cost.op for cost in recording.costs if cost.event >= start]
    out_of_place, in_place = real_sums(num_uses)
    assert ops.count("aten.add.Tensor") == out_of_place
    assert ops.count("aten.add_.Tensor") == in_place


def test_parts_of_an_operation_leave_the_outer_tape_as_it_was():
    def program(_):
        with torch.inference_mode():
            x = torch.empty(4, 4, device=GPU)
            nn.functional.linear(x, x)
            torch.einsum("ij,jk->ik", x, x)

    before = num_hooks(), torch.UntypedStorage.resize_
    record(program)
    assert (num_hooks(), torch.UntypedStorage.resize_) == before
    assert torch.autograd.is_multithreading_enabled()


def test_a_module_that_blocks_share_belongs_to_the_one_that_calls_it():
    from brimful.pretend.owners import Owners

    class Block(torch.nn.Module):
        def __init__(self, act):
            super().__init__()
            self.act = act

        def forward(self, x):
            return self.act(x)

    seen, act = [], torch.nn.ReLU()
    model = torch.nn.Sequential(Block(act), Block(act))
    owners = Owners()
    owners.name(model, "h")
    act.forward = lambda x: seen.append(owners.now(None)) or x
    owners.watch()
    try:
        model(torch.ones(1))
    finally:
        owners.unwatch()
    assert seen == ["h.0.act", "h.1.act"]
