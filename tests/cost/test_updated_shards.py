"""What updates shards in a way of its own: its state, its transients, what it gathers."""

import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.family import family_of
from brimful.cost.states import device_update
from brimful.cost.traffic import traffic_of
from brimful.cost.update import CUDA, Updater, updater_of
from brimful.hardware.gpus import load_cluster
from brimful.simulate.run import simulate_recorded
from brimful.techniques.runnable import check_strategy
from brimful.units import KIB
from brimful.values.job import check_job
from brimful.values.results import OPTIMIZER_STATE
from samples import make_job, make_model, make_strategy
from tapes import taken_by_update

pytestmark = pytest.mark.torch

SIZES = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 300, "num_hidden_layers": 2}
NUM_COUNTED = 100
"""Tensors at most, of each of which AdamW counts its steps in 4 bytes."""


@pytest.mark.few
@pytest.mark.parametrize("rows", [256, 250])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-master"])
@pytest.mark.parametrize("optimizer", ["adamw-8bit", "muon", "sgd"])
def test_what_updates_shards_takes_what_it_takes_in_simulation(optimizer, precision, rows):
    """Beside the whole step: what an update takes, which others outweigh."""
    model = make_model("llama", **{**SIZES, "intermediate_size": rows})
    job = make_job(model=model, precision=precision, optimizer=optimizer, seq_len=16)
    job = check_job(msgspec.structs.replace(job, global_batch=6))
    strategy = check_strategy(job, make_strategy(micro_batch=2, zero=3, dp_shard=3))
    cluster = load_cluster("3xh100", memory_limit_bytes=None)
    predicted = estimate(job, cluster, strategy)
    simulated, recording, _ = simulate_recorded(job, cluster, strategy)
    taken = taken_by_update(recording)
    update = device_update(job, family_of(job, strategy), Updater("cuda", num_shards=3))
    assert update.transient == pytest.approx(taken, abs=KIB)  # scalars of the norm
    state = [item for item in simulated.items if item.name == OPTIMIZER_STATE]
    assert [item.num_bytes for item in state] == [pytest.approx(update.kept, abs=4 * NUM_COUNTED)]
    peak = simulated.simulated_peak_allocated_bytes
    assert predicted.predicted_peak_allocated_bytes == pytest.approx(peak, rel=1e-3)


def test_an_update_that_gathers_is_slower_over_a_slower_network():
    job = make_job(model=make_model("llama", **SIZES), seq_len=16, global_batch=16)
    strategy = make_strategy(micro_batch=2, zero=3, dp_shard=8)
    muon = msgspec.structs.replace(job, optimizer="muon")
    clusters = [load_cluster(name, memory_limit_bytes=None) for name in ("8xh100", "8x1xh100")]
    family = family_of(job, strategy)
    more = [
        traffic_of(muon, family, cluster).per_step - traffic_of(job, family, cluster).per_step
        for cluster in clusters
    ]
    assert 0 < more[0] < more[1]


@pytest.mark.few
@pytest.mark.parametrize("gpu", ["h100", "rtx-4090"])
@pytest.mark.parametrize("precision", ["bf16", "bf16-master"])
def test_adafactor_takes_what_a_card_leaves_of_sums_of_columns(gpu, precision):
    sizes = {"hidden_size": 512, "intermediate_size": 16_384, "num_hidden_layers": 1}
    model = make_model("llama", vocab_size=97, **sizes)
    job = check_job(make_job(model=model, precision=precision, optimizer="adafactor", seq_len=16))
    strategy, cluster = make_strategy(micro_batch=4), load_cluster(gpu, memory_limit_bytes=None)
    update = device_update(job, family_of(job, strategy), updater_of(cluster.device))
    taken = taken_by_update(simulate_recorded(job, cluster, strategy).recording)
    assert update.transient == pytest.approx(taken, abs=KIB)
    nobody = device_update(job, family_of(job, strategy), CUDA)
    assert nobody.transient < update.transient
