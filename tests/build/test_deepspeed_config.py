"""DeepSpeed's JSON: what it says of a job and a strategy, and what is refused."""

import json
import subprocess
import sys

import pytest

from brimful.build.deepspeed.config import deepspeed_config
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.techniques.runnable import check_strategy
from brimful.values.job import LossScale
from brimful.values.strategy import default_accumulate, num_micro_batches
from samples import make_adapter, make_cluster, make_job, make_strategy

SCALE = LossScale(initial_scale=2.0**12, growth_factor=2.0, backoff_factor=0.5, growth_interval=7)


def strategy_of(zero=2, dp_shard=2, **changes):
    kept = default_accumulate("deepspeed", zero)
    fields = {"accumulate": kept, "engine": "deepspeed", "zero": zero, "dp_shard": dp_shard}
    return make_strategy(**{**fields, **changes})


def config_of(job=None, **changes):
    job, strategy = job or make_job(), strategy_of(**changes)
    return deepspeed_config(job, check_strategy(job, strategy))


def test_it_is_plain_json():
    config = config_of(zero=3, offload="parameters")
    assert json.loads(json.dumps(config)) == config


@pytest.mark.parametrize("clip", [0.0, 0.3, 1.0, 7.5])
def test_the_clip_is_always_said(clip):
    assert config_of(make_job(clip=clip))["gradient_clipping"] == clip


@pytest.mark.parametrize(("micro_batch", "dp_shard"), [(1, 2), (2, 2), (1, 4), (4, 1)])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_the_batches_multiply_as_deepspeed_demands(micro_batch, dp_shard, zero):
    config = config_of(zero=zero, dp_shard=dp_shard, micro_batch=micro_batch)
    parts = (
        config["train_micro_batch_size_per_gpu"],
        config["gradient_accumulation_steps"],
        dp_shard,
    )
    assert config["train_batch_size"] == 4 == parts[0] * parts[1] * parts[2]
    assert config["zero_optimization"]["stage"] == zero


@pytest.mark.parametrize(
    ("precision", "held", "enabled"),
    [
        ("fp32", "fp32", set()),
        ("tf32", "fp32", set()),
        ("bf16-mixed", "fp32", set()),
        ("bf16-master", "bf16", {"bf16"}),
        ("fp16-master", "fp16", {"fp16"}),
    ],
)
def test_types_are_the_recipes(precision, held, enabled):
    scale = SCALE if precision == "fp16-master" else None
    config = config_of(make_job(precision=precision, loss_scale=scale))
    assert config["communication_data_type"] == held
    assert config["data_types"]["grad_accum_dtype"] == held
    assert {name for name in ("bf16", "fp16") if config[name]["enabled"]} == enabled
    assert not config["torch_autocast"]["enabled"]


def test_masters_are_fp32():
    section = config_of(make_job(precision="bf16-master"))["bf16"]
    assert not section["bf16_master_weights_and_grads"]
    assert not section["bf16_optimizer_states"]


def test_the_loss_scale_is_the_jobs():
    section = config_of(make_job(precision="fp16-master", loss_scale=SCALE))["fp16"]
    assert section["loss_scale"] == 0
    assert 2.0 ** section["initial_scale_power"] == SCALE.initial_scale
    assert section["loss_scale_window"] == SCALE.growth_interval
    assert section["hysteresis"] == 1


@pytest.mark.parametrize(
    ("offload", "zero", "sections"),
    [
        ("none", 3, set()),
        ("optimizer", 1, {"offload_optimizer"}),
        ("optimizer", 2, {"offload_optimizer"}),
        ("optimizer", 3, {"offload_optimizer"}),
        ("parameters", 3, {"offload_optimizer", "offload_param"}),
    ],
)
def test_only_what_is_offloaded_is_on_the_host(offload, zero, sections):
    section = config_of(zero=zero, offload=offload)["zero_optimization"]
    found = {name for name in section if name.startswith("offload_")}
    assert found == sections
    assert all(section[name]["device"] == "cpu" for name in found)


def test_the_optimizer_and_the_schedule_stay_ours():
    config = config_of(offload="optimizer")
    assert "optimizer" not in config
    assert "scheduler" not in config
    assert config["zero_allow_untested_optimizer"]
    assert not config["zero_force_ds_cpu_optimizer"]


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_buckets_are_said_and_no_larger_than_the_model_asks_for(zero):
    job = make_job()
    section = config_of(job, zero=zero)["zero_optimization"]
    assert section["reduce_bucket_size"] == job.model.hidden_size**2 == 32 * 32
    assert section["allgather_bucket_size"] % 2 == 0  # DeepSpeed asserts it
    assert ("stage3_prefetch_bucket_size" in section) == (zero == 3)


def test_what_a_strategy_says_of_its_engine_is_written_and_nothing_else_taken():
    said = "overlap_comm:false,stage3_max_live_parameters:1e8"
    section = config_of(zero=3, engine_settings=said)["zero_optimization"]
    assert (section["overlap_comm"], section["stage3_max_live_parameters"]) == (False, 10**8)
    for other, words in (
        ("overlap:true", "did you mean overlap_comm"),
        ("overlap_comm:7", "true or false"),
        ("reduce_bucket_size:-1", "0 or more"),
        ("reduce_bucket_size:inf", "0 or more"),
    ):
        with pytest.raises(InputError, match=words):
            check_strategy(make_job(), strategy_of(engine_settings=other))
    with pytest.raises(UnsupportedError, match="engine=deepspeed alone"):
        check_strategy(make_job(), make_strategy(engine_settings=said))


@pytest.mark.parametrize("zero", [2, 3])
def test_several_micro_batches_reduce_each(zero):
    assert num_micro_batches(make_job(), strategy_of(zero=zero, micro_batch=1)) == 2
    with pytest.raises(UnsupportedError, match="accumulate=reduce-each"):
        check_strategy(make_job(), strategy_of(zero=zero, micro_batch=1, accumulate="hold"))


REFUSED = [
    ({}, {"zero": 0, "dp_shard": 1, "dp_replicate": 2}, "zero=0|dp_replicate=2"),
    ({}, {"zero": 2, "dp_replicate": 2}, "dp_replicate=2"),
    ({}, {"zero": 1, "micro_batch": 1, "accumulate": "reduce-each"}, "accumulate=hold"),
    ({}, {"zero": 2, "offload": "parameters"}, "zero=3"),
    ({"precision": "bf16"}, {}, "precision=bf16 .*bf16-master"),
    ({"precision": "fp16-mixed", "loss_scale": SCALE}, {}, "precision=fp16-mixed"),
    ({"optimizer": "adafactor"}, {}, "optimizer=adafactor"),
    ({"optimizer": "adamw-8bit"}, {}, "optimizer=adamw-8bit"),
    ({"method": "lora", "adapter": make_adapter()}, {}, "method=full"),
]


@pytest.mark.parametrize(("job", "strategy", "words"), REFUSED)
def test_what_deepspeed_is_not_given_is_refused_in_one_sentence(job, strategy, words):
    with pytest.raises((UnsupportedError, InputError), match=words) as caught:
        check_strategy(make_job(**job), strategy_of(**strategy))
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [{"growth_factor": 4.0}, {"backoff_factor": 0.25}, {"initial_scale": 3.0}],
)
def test_a_loss_scale_that_its_json_cannot_say_is_refused(changes):
    fields = {"initial_scale": 2.0**12, "growth_factor": 2.0, "backoff_factor": 0.5}
    scale = LossScale(**{**fields, **changes}, growth_interval=7)
    job = make_job(precision="fp16-master", loss_scale=scale)
    with pytest.raises(UnsupportedError, match=next(iter(changes))):
        check_strategy(job, strategy_of())


def test_one_device_may_shard_with_itself_to_offload():
    job = make_job()
    check_strategy(job, strategy_of(dp_shard=1, offload="optimizer"))
    with pytest.raises(InputError, match="dp_shard=1"):
        check_strategy(job, make_strategy(zero=1))


def test_parameters_away_from_several_devices_are_deepspeeds():
    job = make_job()
    check_strategy(job, strategy_of(zero=3, offload="parameters"))
    with pytest.raises(UnsupportedError, match="2 devices is not run by engine=torch"):
        check_strategy(job, make_strategy(zero=3, dp_shard=2, offload="parameters"))


def test_autocast_over_parted_parameters_is_not_predicted():
    from brimful.cost.estimate import estimate, estimate_or_none

    one = make_cluster()
    two = Cluster(name="local", device=one.device, num_devices=2, host_ram_bytes=0)
    job, strategy = make_job(precision="bf16-mixed"), strategy_of(zero=3)
    assert estimate_or_none(job, two, strategy) is None
    with pytest.raises(UnsupportedError, match="--for deepspeed"):
        estimate(job, two, strategy)


@pytest.mark.torch
def test_nothing_is_simulated_of_it():
    from brimful.simulate.run import simulate

    with pytest.raises(UnsupportedError, match="not simulated"):
        simulate(make_job(), make_cluster(), strategy_of())


def test_writing_it_imports_neither_torch_nor_deepspeed():
    code = (
        "import sys, brimful.build.deepspeed.config; "
        "print([m for m in ('torch', 'deepspeed') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(("method", "is_named"), [("lora", True), ("dora", False)])
def test_adapters_are_sent_to_its_own_code(method, is_named):
    job = make_job(method=method, adapter=make_adapter())
    with pytest.raises(UnsupportedError, match=f"method={method} is not run") as refused:
        check_strategy(job, strategy_of())
    assert ("brimful simulate --for deepspeed runs it" in str(refused.value)) == is_named
    assert "use method=full" in str(refused.value)
