"""What a program can be told is asked of its exporter."""

import pytest
from msgspec.structs import replace

from brimful.errors import UnsupportedError
from brimful.export import TARGETS
from brimful.export.programs import program_of
from brimful.export.told import Asking, check_told, fields, narrowed, why_untold
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.values.job import plain_job
from brimful.values.plan import PLAN_SCHEMA, Plan
from brimful.values.strategy import Strategy

PLAINEST = Strategy(micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention="sdpa")


def asking(to, gpus="8xh100-80gb", **job):
    cluster = load_cluster(gpus, memory_limit_bytes=None, network_name="")
    num = cluster.num_devices
    plainest = replace(PLAINEST, dp_shard=num, zero=3 if num > 1 else 0)
    told = {"precision": "bf16-mixed", "seq_len": 512, "global_batch": num} | job
    return Asking(to, plain_job(load_model("llama-3.2-1b"), **told), cluster, plainest)


@pytest.mark.parametrize("to", ["torchrun", "slurm"])
def test_what_runs_this_program_is_told_all(to):
    assert narrowed(asking(to)) == {}


@pytest.mark.parametrize("gpus", ["h100-80gb", "8xh100-80gb"])
@pytest.mark.parametrize("to", sorted(set(TARGETS) - {"torchrun", "slurm"}))
def test_a_program_stays_within_what_its_exporter_says(to, gpus):
    asked = asking(to, gpus, precision="bf16" if to == "axolotl" else "bf16-mixed")
    check_told(asked)
    stays = narrowed(asked)
    assert stays["optimizer_in_backward"] is False
    for field, values in fields(asked).items():
        if field == "dp_replicate":  # told without sharding, whatever is sharded
            continue
        kept = stays.get(field, values)
        kept = kept if isinstance(kept, list | tuple) else [kept]
        told = [value for value in kept if not why_untold(asked, field, value)]
        assert told == list(kept) or len(kept) == 1


def test_the_trainer_recomputes_all_blocks_or_none():
    assert narrowed(asking("hf-trainer"))["activation_checkpointing"] == ["none", "full"]
    assert why_untold(asking("hf-trainer"), "tp", 2) == "tp=2"


@pytest.mark.parametrize("to", ["hf-trainer", "trl", "llama-factory", "accelerate", "deepspeed"])
def test_every_program_of_transformers_is_told_to_shard(to):
    assert not why_untold(
        asking(to, precision="bf16-master" if to == "deepspeed" else "bf16-mixed"), "zero", 3
    )


def test_trl_computes_logits_in_tiles_of_its_own():
    assert narrowed(asking("trl"))["loss_chunks"] == 4


def test_stage_1_of_the_trainer_is_deepspeeds():
    assert narrowed(asking("hf-trainer"))["zero"] == [0, 2, 3]
    assert "DeepSpeed" in why_untold(asking("hf-trainer"), "zero", 1)


def test_a_job_that_it_cannot_be_given_is_refused():
    with pytest.raises(UnsupportedError, match="task=dpo cannot be said to trl"):
        check_told(asking("trl", task="dpo"))


def plan(strategy=PLAINEST, **job):
    asked = asking("hf-trainer", "h100-80gb", global_batch=4, **job)
    return Plan(
        schema=PLAN_SCHEMA, job=asked.job, cluster=asked.cluster, strategy=strategy, estimate=None
    )


def test_what_the_trainer_runs_is_what_is_exported():
    program = program_of("hf-trainer", plan())
    ((name, text),) = program.files
    assert name == "given.json"
    assert '"bf16": true' in text
    assert '"model": "meta-llama/Llama-3.2-1B"' in text


def test_a_strategy_that_it_is_not_told_is_not_run():
    with pytest.raises(UnsupportedError, match="cannot be told loss_chunks=4"):
        program_of("hf-trainer", plan(replace(PLAINEST, loss_chunks=4)))


def test_what_is_not_run_here_says_what_is():
    with pytest.raises(UnsupportedError, match=r"slurm itself is not run .* hf-trainer, .*trl"):
        program_of("slurm", plan())
