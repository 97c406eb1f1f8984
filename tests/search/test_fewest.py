"""What holds on the same devices with the fewest settings changed."""

import pytest

from brimful.cost.reserved import predicted_reserved
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search.beside import beside, fix
from brimful.search.fewest import fewest_changes, on_the_host, spread_anew
from brimful.search.lean import lean_fix
from samples import make_job, make_strategy

SETTINGS = ("micro_batch", "activation_checkpointing", "loss_chunks")


def on(gpus):
    return load_cluster(gpus, memory_limit_bytes=None)


def changed(strategy, other):
    return [name for name in SETTINGS if getattr(strategy, name) != getattr(other, name)]


def test_two_settings_are_changed_where_one_is_not_enough():
    job = make_job(
        model=load_model("qwen2.5-0.5b"), seq_len=4096, global_batch=4, precision="bf16-mixed"
    )
    cluster, strategy = on("rtx-3060"), make_strategy(micro_batch=4)
    assert fix(job, cluster, beside(job, cluster, strategy)) is None
    assert lean_fix(job, cluster, strategy).fix is None
    found = fewest_changes(job, cluster, strategy)
    assert len(changed(strategy, found.strategy)) == 2
    assert predicted_reserved(job, cluster, found.strategy).word == "fits"


@pytest.mark.parametrize("settings", [{"loss_chunks": 16}, {"micro_batch": 4}])
def test_nothing_else_is_changed_where_one_setting_is_enough(settings):
    job = make_job(
        model=load_model("qwen2.5-0.5b"), seq_len=2048, global_batch=8, precision="bf16-mixed"
    )
    strategy = make_strategy(activation_checkpointing="full", **{"micro_batch": 8, **settings})
    found = fewest_changes(job, on("rtx-4060-ti-16gb"), strategy)
    assert len(changed(strategy, found.strategy)) <= 1


def test_states_go_to_the_host_where_no_setting_holds():
    job = make_job(
        model=load_model("llama-3.2-3b"), seq_len=2048, global_batch=1, precision="bf16-mixed"
    )
    cluster, strategy = on("rtx-3090"), make_strategy()
    assert fewest_changes(job, cluster, strategy) is None
    assert on_the_host(job, cluster, strategy).strategy.offload != "none"
    assert on_the_host(job, cluster, make_strategy(offload="optimizer")) is None


def test_a_spread_that_holds_nothing_is_searched_anew():
    job = make_job(
        model=load_model("llama-3.1-8b"), seq_len=131072, global_batch=4, precision="bf16-mixed"
    )
    cluster, strategy = on("4xa100-80gb"), make_strategy(zero=3, dp_shard=4)
    assert fewest_changes(job, cluster, strategy) is None
    assert spread_anew(job, cluster, strategy).strategy.tp > 1
    assert spread_anew(job, on("a100-80gb"), make_strategy()) is None
