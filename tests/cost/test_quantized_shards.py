"""QLoRA under ZeRO: packed weights are sharded, what decodes them is not."""

import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.requests import requests_of
from brimful.errors import UnsupportedError
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Adapter, Base
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

NUMBER_BYTES = 4
WAYS = (
    ("bf16", {"zero": 3, "dp_shard": 3}),
    ("bf16-mixed", {"zero": 2, "dp_shard": 4, "activation_checkpointing": "full"}),
)


def job_with(base: Base, **changes):
    adapter = Adapter(
        rank=4, alpha=8.0, targets=("all-linear",), trained_modules=(), dtype="same", base=base,
        upcast="none", input_requires_grad=False,
    )  # fmt: skip
    model = make_model(hidden_size=256, intermediate_size=704, vocab_size=512)
    fields = {"method": "qlora", "adapter": adapter, "model": model, "seq_len": 128, **changes}
    return make_job(**fields)


@pytest.mark.few(1)
@pytest.mark.parametrize(("precision", "ways"), WAYS)
def test_prediction_is_that_of_the_simulation(precision, ways):
    from brimful.simulate.run import simulate

    job = job_with("nf4-double", precision=precision, global_batch=2 * ways["dp_shard"])
    strategy = check_strategy(job, make_strategy(micro_batch=1, attention="sdpa", **ways))
    devices = {"num_devices": ways["dp_shard"], "devices_per_node": ways["dp_shard"]}
    cluster = msgspec.structs.replace(make_cluster("cuda"), **devices)
    predicted, simulated = estimate(job, cluster, strategy), simulate(job, cluster, strategy)
    peaks = predicted.predicted_peak_allocated_bytes, simulated.simulated_peak_allocated_bytes
    assert peaks[0] == pytest.approx(peaks[1], rel=5e-4)


def signed_sizes(requests, stop):
    """List what is asked for, and (negative) given back, up to an event."""
    sizes = []
    for event in requests.events[:stop].tolist():
        row = event if event >= 0 else ~event
        if requests.num_bytes[row] > NUMBER_BYTES:
            sizes.append(int(requests.num_bytes[row]) * (1 if event >= 0 else -1))
    return sizes


def test_loading_asks_for_what_the_simulation_does():
    from brimful.simulate.run import simulate_recorded

    job = job_with("nf4-double", model=make_model("gpt2"), precision="fp16", global_batch=4)
    strategy = make_strategy(micro_batch=1, attention="sdpa", zero=2, dp_shard=4)
    cluster = msgspec.structs.replace(make_cluster("cuda"), num_devices=4, devices_per_node=4)
    recording = simulate_recorded(job, cluster, strategy).recording
    stop = recording.phase_starts[recording.phases.index("step 1 state")]
    mine = signed_sizes(requests_of(job, strategy, cluster.device), None)
    theirs = signed_sizes(recording.requests(), stop)
    assert mine[: len(theirs)] == theirs
    assert len(theirs) > 100


def test_what_sharding_does_not_see_is_refused():
    with pytest.raises(UnsupportedError, match=r"zero=3 with base=llm-int8 .* use base=int8"):
        check_strategy(
            job_with("llm-int8", global_batch=4), make_strategy(micro_batch=1, zero=3, dp_shard=2)
        )
