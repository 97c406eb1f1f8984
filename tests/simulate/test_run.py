import msgspec
import pytest
import torch

from brimful.build.assemble import finish_program
from brimful.errors import OutOfTimeError
from brimful.pretend.reading import classify, items_at, phase_of_step
from brimful.pretend.recording import NEVER
from brimful.simulate.run import simulate, simulate_recorded, trace
from brimful.values.plan import convert
from brimful.values.results import (
    AUTOCAST_CACHE,
    ITEM_NAMES,
    LOGITS,
    PARAMETERS,
    SAVED_ACTIVATIONS,
    Simulation,
)
from other_models import CNN, make_other_job
from samples import make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch


def run(kernels="cpu", architecture="llama", *, precision="fp32", **switches):
    job = make_job(architecture, precision=precision, seq_len=128)
    return simulate(job, make_cluster(kernels), make_strategy(**switches))


@pytest.mark.few
@pytest.mark.parametrize("kernels", ["cpu", "cuda"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_items_and_phases_agree_with_the_peak(kernels, architecture):
    result = run(kernels, architecture, precision="bf16-mixed")
    peak = result.simulated_peak_allocated_bytes
    assert sum(item.num_bytes for item in result.items) == peak
    assert max(phase.num_bytes for phase in result.phases) == peak
    assert max(result.timeline.live_bytes) == peak
    assert [phase.phase for phase in result.phases] == ["load", "step 1", "step 2+"]
    assert {item.name for item in result.items} <= set(ITEM_NAMES)
    assert result.kernels == kernels


def test_owners_are_the_largest_allocations_at_the_peak():
    result = run()
    sizes = [owner.num_bytes for owner in result.owners]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) <= result.simulated_peak_allocated_bytes
    by_item = {item.name: item.num_bytes for item in result.items}
    for owner in result.owners:
        assert owner.num_bytes <= by_item[owner.item]
    assert any("layers" in owner.module for owner in result.owners)


def test_a_simulation_is_repeatable():
    one, other = (run("cuda", precision="bf16-mixed") for _ in range(2))
    assert msgspec.structs.replace(one, simulate_s=0.0) == msgspec.structs.replace(
        other, simulate_s=0.0
    )


def test_a_simulation_survives_json():
    result = run()
    raw = msgspec.json.decode(msgspec.json.encode(result))
    assert convert(raw, Simulation, source="simulation.json") == result


def test_no_real_memory_is_taken_and_the_process_is_left_as_it_was():
    before = torch.get_default_dtype(), torch.is_grad_enabled()
    job = make_job(seq_len=512, global_batch=2**16)
    result = simulate(job, make_cluster("cuda"), make_strategy(micro_batch=2**15))
    assert result.simulated_peak_allocated_bytes > 2**36
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == before
    assert torch.ones(1).device.type == "cpu"


@pytest.mark.long  # cost/test_memory.py has the order, predictions the amounts
def test_checkpointing_and_chunks_lower_what_they_should():
    plain = run("cpu", "llama")
    chunked = run("cpu", "llama", loss_chunks=8)
    checkpointed = run("cpu", "llama", activation_checkpointing="full")
    bytes_of = {
        name: {item.name: item.num_bytes for item in result.items}
        for name, result in (("plain", plain), ("chunked", chunked), ("full", checkpointed))
    }
    assert bytes_of["chunked"].get(LOGITS, 0) < bytes_of["plain"][LOGITS]
    assert bytes_of["full"][SAVED_ACTIVATIONS] < bytes_of["plain"][SAVED_ACTIVATIONS]
    assert AUTOCAST_CACHE not in bytes_of["plain"]


def test_more_micro_batches_than_are_traced_change_nothing():
    peaks = {
        num: simulate(
            make_job(global_batch=2 * num), make_cluster(), make_strategy()
        ).simulated_peak_allocated_bytes
        for num in (2, 3, 8)
    }
    assert len(set(peaks.values())) == 1


def test_every_allocation_has_one_class_and_lasting_ones_are_tagged():
    recording = trace(make_job(), make_strategy(), imitate="cpu").recording
    item = classify(recording)
    assert len(item) == len(recording.num_bytes)
    lasting = recording.died == NEVER
    names = {ITEM_NAMES[i] for i in item[lasting]}
    assert names <= {"parameters", "buffers", "optimizer state", "transients"}
    live = recording.live_bytes()
    assert live.min() >= 0
    for event in range(0, len(live), len(live) // 7):
        assert sum(i.num_bytes for i in items_at(recording, event)) == live[event]
    load_end = int(recording.phase_starts[1]) - 1
    at_load = {i.name: i.num_bytes for i in items_at(recording, load_end)}
    assert set(at_load) == {PARAMETERS, "buffers"}


@pytest.mark.parametrize(
    ("tape", "read"),
    [
        ("load", "load"),
        ("step 1 forward", "step 1"),
        ("step 2 backward", "step 2+"),
        ("step 10 optimizer", "step 2+"),
    ],
)
def test_tape_phases_have_readable_names(tape, read):
    assert phase_of_step(tape) == read


def test_a_convolutional_module_is_costed_and_what_backward_raises_comes_through(monkeypatch):
    job = make_other_job(CNN)
    strategy = make_strategy(micro_batch=2)
    traced = trace(job, strategy, imitate="cpu", capability=9.0, count_costs=True, num_steps=1)
    flops = [c.matrix_flops for c in traced.recording.costs if "convolution_backward" in c.op]
    assert flops
    assert min(flops) > 0

    def refuse(func, *_args):
        if "backward" in str(func):
            raise ZeroDivisionError("from below")
        return 0, 0, ()

    monkeypatch.setattr("brimful.pretend.fake_mode._known", {})  # what costs are kept with
    monkeypatch.setattr("brimful.pretend.fake_mode.work", refuse)
    with pytest.raises(ZeroDivisionError, match="from below"):
        trace(job, strategy, imitate="cpu", capability=9.0, count_costs=True, num_steps=1)


def test_what_ends_a_simulation_is_raised_whatever_torch_makes_of_it(monkeypatch):
    """As ``Module._apply`` does, which says of any error that a parameter could not be swapped."""

    def told_otherwise(*args, **options):
        try:
            return finish_program(*args, **options)
        except Exception as error:
            raise RuntimeError("Couldn't swap Linear.weight") from error

    monkeypatch.setattr("brimful.simulate.run.finish_program", told_otherwise)
    left = iter(range(20))

    def go_on():
        if next(left, None) is None:
            raise OutOfTimeError("enough")

    with pytest.raises(OutOfTimeError, match="enough"):
        simulate_recorded(make_job(), make_cluster("cuda"), make_strategy(), on_op=go_on)
