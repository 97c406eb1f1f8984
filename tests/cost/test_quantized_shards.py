"""QLoRA under ZeRO: packed weights are sharded, what decodes them is not."""

import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.errors import UnsupportedError
from brimful.job import Adapter, Base
from brimful.strategy import check_strategy
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

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


def test_what_sharding_does_not_see_is_refused():
    with pytest.raises(UnsupportedError, match=r"zero=3 with base=llm-int8 .* use base=int8"):
        check_strategy(
            job_with("llm-int8", global_batch=4), make_strategy(micro_batch=1, zero=3, dp_shard=2)
        )
