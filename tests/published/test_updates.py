"""Optimizers that update inside backward, and whose state the allocator does not have."""

import msgspec
import pytest

from brimful.published.express import Unexpressed
from brimful.published.predict import predict
from brimful.published.rows import PublishedRun

CHANGES = msgspec.structs.replace
PLAIN = PublishedRun(
    id="full",
    family="own",
    implementation="hf",
    model="llama-2-7b",
    gpu="a100-80gb",
    num_devices=1,
    method="full",
    precision="bf16",
    optimizer="adamw",
    seq_len=2048,
    micro_batch=4,
    checkpointing="full",
    source="none",
    versions="none",
)
EARLY = CHANGES(PLAIN, unlike=("optimizer in backward",))
BOTH = CHANGES(PLAIN, unlike=("optimizer in backward", "paged optimizer"))
NUM = 6_738_415_616
SMALL = (2 * 32 + 1) * 4096
"""Numbers of norms, whose state stays where it is."""


def test_gradients_that_go_at_once_are_not_there_together():
    less = predict(PLAIN).allocated_bytes - predict(EARLY).allocated_bytes
    assert 2 * NUM * 0.6 < less < 2 * NUM  # beside the logits there were none before either


def test_it_is_what_the_simulation_says():
    """42.8519 GiB: brimful simulate with --optimizer-in-backward --clip 0, these settings."""
    assert predict(EARLY).allocated_bytes / 2**30 == pytest.approx(42.85, abs=0.01)


def test_managed_state_is_not_the_allocators():
    less = predict(EARLY).allocated_bytes - predict(BOTH).allocated_bytes
    assert less == pytest.approx(4 * (NUM - SMALL), rel=1e-6)


def test_a_temporary_of_an_update_is_one_parameters():
    head = 2 * 32000 * 4096
    foreach = predict(CHANGES(EARLY, optimizer="adamw-foreach")).allocated_bytes
    assert 0 <= foreach - predict(EARLY).allocated_bytes <= head


@pytest.mark.parametrize("more", [{"accumulation": 2}, {"num_devices": 2, "dp_replicate": 2}])
def test_sharded_or_gathered_updates_are_not_told(more):
    assert isinstance(predict(CHANGES(EARLY, **more)), Unexpressed)


def test_what_such_a_program_reserves_is_not_told():
    assert predict(EARLY).likely_process_bytes is None
    assert predict(PLAIN).likely_process_bytes is not None
