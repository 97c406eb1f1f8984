"""``--engine`` and ``--offload``: which verbs take them, and what the others say."""

import json
import re

import pytest
import yaml
from tests.cli.conftest import CONFIG

from brimful.cli import flags, resolved
from brimful.cli.parsing import Parser
from brimful.errors import InputError
from brimful.units import GIB
from brimful.values.strategy import Strategy

TWO = ("--gpus", "2xa100-40gb", "--precision", "fp32", "--seq-len", "32")
BY_DEEPSPEED = ("--engine", "deepspeed", "--zero", "2")


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(CONFIG))
    return path


def strategy_of(model, *argv):
    parser = Parser()
    flags.add_model(parser)
    flags.add_job(parser)
    flags.add_strategy(parser, searched=False)
    args = parser.parse_args([str(model), *TWO, *argv])
    return resolved.asked(args).strategy


def test_all_blocks_are_deepspeeds_own_word_and_more_are_refused(model):
    zero, every = ("--engine", "deepspeed", "--zero", "3"), CONFIG["num_hidden_layers"]
    assert strategy_of(model, *zero, "--offload", f"parameters:{every}").offload == "parameters"
    with pytest.raises(InputError, match=f"asks for {every}0 blocks"):
        strategy_of(model, *zero, "--offload", f"parameters:{every}0")


def test_it_is_not_searched(brimful, model):
    said = brimful("plan", model, *TWO, *BY_DEEPSPEED)
    assert said.code == 2
    assert "deepspeed" in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_its_settings_go_with_it_alone(brimful, model):
    said = brimful("plan", model, *TWO, "--engine-settings", "overlap_comm:false")
    assert said.code == 2
    assert "--engine-settings are of --engine deepspeed" in said.err
    said = brimful("estimate", model, *TWO, *BY_DEEPSPEED, "--engine-settings", "buckets:1")
    assert said.code == 2
    assert "unknown setting of DeepSpeed's engine 'buckets'" in said.err


def test_it_is_predicted(brimful, model):
    said = brimful("estimate", model, *TWO, *BY_DEEPSPEED)
    assert said.code == 0
    assert "DeepSpeed ZeRO-2 over 2 GPUs" in said.out
    assert "--for deepspeed proves it" in " ".join(said.out.split())


@pytest.mark.torch
def test_it_is_not_simulated(brimful, model):
    said = brimful("simulate", model, *TWO, *BY_DEEPSPEED)
    assert said.code == 2
    assert "not simulated" in said.err


def test_plan_does_not_ignore_offload(brimful, model):
    said = brimful("plan", model, *TWO, "--offload", "parameters")
    assert said.code == 2
    assert "offload=parameters with 2 devices is not run by engine=torch" in said.err


def test_a_list_is_not_searched(brimful, model, tmp_path):
    where = ("--data", "stdlib", "--out", tmp_path / "run")
    here = ("--gpus", "2xlocal")
    said = brimful("train", model, *TWO, *BY_DEEPSPEED, *here, "--micro-batch", "1,2", *where)
    assert said.code == 2
    assert "--micro-batch 1,2" in said.err


def test_without_flags_the_engine_is_torch(model):
    strategy = strategy_of(model)
    assert (strategy.engine, strategy.offload) == ("torch", "none")


@pytest.mark.parametrize(("zero", "kept"), [("1", "hold"), ("2", "reduce-each")])
def test_gradients_between_micro_batches_are_what_the_stage_does(model, zero, kept):
    strategy = strategy_of(model, "--engine", "deepspeed", "--zero", zero, "--global-batch", "8")
    assert isinstance(strategy, Strategy)
    assert strategy.accumulate == kept


def test_a_plan_may_say_it(brimful, model, tmp_path):
    plan = tmp_path / "plan.yaml"
    assert brimful("plan", model, *TWO, "--zero", "2", "-o", plan).code in {0, 1}
    content = yaml.safe_load(plan.read_text())
    content["strategy"]["engine"] = "deepspeed"
    plan.write_text(yaml.safe_dump(content, sort_keys=False))
    said = brimful("estimate", plan)
    assert said.code == 0
    assert "DeepSpeed ZeRO-2" in said.out


def test_a_file_that_offloads_parameters_on_several_gpus_is_answered_by_deepspeeds_formula(
    brimful, tmp_path
):
    away = {"device": "cpu"}
    stage = {"stage": 3, "offload_optimizer": away, "offload_param": away}
    content = {"bf16": {"enabled": True}, "zero_optimization": stage, "train_batch_size": 4}
    content |= {"train_micro_batch_size_per_gpu": 1}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(content), "utf-8")
    asked = ("plan", "qwen2.5-0.5b", "--gpus", "4xrtx-a6000", "--seq-len", "512")
    said = brimful(*asked, "--host-memory", "256GB", "--from", str(path))
    assert said.code == 0
    assert "DeepSpeed ZeRO-3 over 4 GPUs" in said.out
    assert "parameters offloaded" in said.out
    # 494M parameters of 18 bytes.
    assert said.out.count("host      8.28 GiB of each, 12.42 GiB with buffers") == 1
    assert "fits in 238.42 GiB" in " ".join(said.out.split())
    assert "unknown   what DeepSpeed's copies and its Adam on the CPU take" in said.out
    assert "the speed is at most that" in " ".join(said.out.split())
    assert "is not run by engine=torch" not in said.err
    adapted = brimful(*asked, "--method", "lora", "--from", str(path))
    assert "DeepSpeed ZeRO-3" not in adapted.out


def test_sixteen_bits_that_the_file_leaves_open_are_those_of_deepspeed(brimful, tmp_path):
    away = {"device": "cpu"}
    stage = {"stage": 3, "offload_optimizer": away, "offload_param": away}
    content = {"bf16": {"enabled": "auto"}, "zero_optimization": stage}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(content), "utf-8")
    asked = ("plan", "qwen2.5-0.5b", "--gpus", "4xrtx-a6000", "--seq-len", "512")
    said = brimful(*asked, "--host-memory", "256GB", "--from", str(path))
    assert (said.code, "DeepSpeed ZeRO-3 over 4 GPUs" in said.out) == (0, True)
    assert "bf16-master" in said.out


@pytest.mark.parametrize(
    ("optimizer", "parameters", "is_told"),
    [
        ("cpu", "cpu", True), ("nvme", "nvme", False), ("cpu", "nvme", False),
        ("nvme", "cpu", False), ("none", "cpu", False), ("none", "nvme", False),
    ],
)  # fmt: skip
def test_the_hosts_bytes_are_told_where_it_holds_all(
    brimful, tmp_path, optimizer, parameters, is_told
):
    stage = {"stage": 3, "offload_optimizer": {"device": optimizer}}
    stage |= {"offload_param": {"device": parameters}}
    content = {"bf16": {"enabled": True}, "zero_optimization": stage, "train_batch_size": 4}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**content, "train_micro_batch_size_per_gpu": 1}), "utf-8")
    asked = ("plan", "qwen2.5-0.5b", "--gpus", "4xrtx-a6000", "--seq-len", "512")
    said = brimful(*asked, "--from", str(path))
    out = " ".join(said.out.split())
    assert "DeepSpeed ZeRO-3 over 4 GPUs" in out
    assert ("\nhost      8.28 GiB of each" in said.out) is is_told
    assert ("\nhost " in said.out) is is_told
    words = "stands in offload_param without offload_optimizer is planned as if both were offloaded"
    assert (words in out) is (optimizer == "none")


def test_what_a_files_engine_takes_stands_beside_the_answer(tmp_path, brimful):
    """Of collectives beside the computing, whose blocks come back late to pools of their own."""
    asked = ("plan", "tinyllama-1.1b", "--gpus", "8xh100-80gb", "--seq-len", "1024", "--ac", "full")
    buckets = ("reduce_bucket_size", "stage3_prefetch_bucket_size")
    held = []
    for overlaps in (True, False):
        stage = {"stage": 3, "overlap_comm": overlaps, **dict.fromkeys(buckets, "auto")}
        content = {"zero_optimization": stage, "bf16": {"enabled": True}}
        content |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}
        path = tmp_path / "ds.json"
        path.write_text(json.dumps(content), "utf-8")
        words = " ".join(brimful(*asked, "--from", path).out.split())
        found = re.search(
            r"DeepSpeed's engine takes (\S+ GiB) of \S+ GiB, predicted, and fits", words
        )
        held.append(found[1])
        own = " ".join(brimful(*asked, "--from", path, "--engine", "deepspeed").out.split())
        assert f"{held[-1]} of 78.35 GiB, predicted settings DeepSpeed ZeRO-3 over 8 GPUs" in own
        assert "unknown" not in own
        engine = json.loads(brimful(*asked, "--from", path, "--json").out)["deepspeed"]
        assert engine["fits"] is True
        assert f"{engine['predicted_bytes'] / GIB:.2f} GiB" == held[-1]
    assert float(held[0].split()[0]) > 1.1 * float(held[1].split()[0])
    adapted = brimful(*asked, "--from", path, "--method", "lora")  # which it has no formula for
    assert adapted.code == 0
    assert "DeepSpeed's engine takes" not in adapted.out
