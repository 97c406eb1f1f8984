"""QLoRA and LoRA as TRL and Axolotl take them: what they load, and what is refused."""

import sys

import msgspec
import pytest
import yaml

from brimful.cli.main import main
from brimful.export import TARGETS
from brimful.export.given import Given
from brimful.values.plan import read_plan
from round_trips import plan_of

FLAGS = ("--gpus", "rtx-4090", "--seq-len", "512")
ASKED = ("plan", "qwen2.5-0.5b", *FLAGS, "--no-proof")
BASE_AWAY = ("--method", "lora", "--offload", "parameters", "--host-memory", "64GiB")
GIVEN = Given("plan.yaml", "my/data", "out")


def planned(*more):
    return plan_of(*FLAGS, *more)


def written(target, plan):
    exported = TARGETS[target](plan, GIVEN)
    return yaml.safe_load(exported.text), {each.field for each in exported.lost}


@pytest.mark.few(only=["nf4-double", "llm-int8"])
@pytest.mark.parametrize("base", ["nf4", "nf4-double", "llm-int8"])
def test_a_quantised_base_is_loaded_as_the_plan_holds_it(base):
    more = ("--method", "qlora", "--base", base, "--global-batch", "8", "--lora-rank", "32")
    plan = planned(*more, "--micro-batch", "2", "--ac", "none", "--loss-chunks", "1")
    trl, _ = written("trl", plan)
    axolotl, _ = written("axolotl", plan)
    is_4bit = base != "llm-int8"
    assert trl.get("load_in_4bit", False) == axolotl["load_in_4bit"] == is_4bit
    assert trl.get("load_in_8bit", False) == axolotl["load_in_8bit"] == (not is_4bit)
    if is_4bit:
        assert trl["use_bnb_nested_quant"] == (base == "nf4-double")
        double = axolotl.get("bnb_config_kwargs", {}).get("bnb_4bit_use_double_quant", True)
        assert double == (base == "nf4-double")
        assert axolotl["adapter"] == "qlora"
    assert (trl["lora_r"], axolotl["lora_r"]) == (32, 32)
    assert trl["model_name_or_path"] == axolotl["base_model"] == "Qwen/Qwen2.5-0.5B"
    assert (trl["dtype"], axolotl["bf16"]) == ("bfloat16", True)
    assert trl["per_device_train_batch_size"] == axolotl["micro_batch_size"] == 2
    assert trl["gradient_accumulation_steps"] == axolotl["gradient_accumulation_steps"] == 4


def test_what_they_cannot_be_told_is_listed():
    _, trl = written("trl", planned("--method", "qlora", "--loss-chunks", "8"))
    _, axolotl = written("axolotl", planned("--method", "lora", "--ac", "full:3"))
    assert {"weights", "adapter", "loss_chunks"} <= trl
    _, tiled = written("trl", planned("--method", "qlora", "--loss-chunks", "4"))
    assert "loss_chunks" not in tiled  # of 128,256 words as TRL's tiles of 32,768
    assert {"weights", "packing", "activation_checkpointing"} <= axolotl


@pytest.mark.few
@pytest.mark.parametrize("target", ["trl", "axolotl"])
@pytest.mark.parametrize(
    ("ours", "theirs"), [("eager", "eager"), ("flash", "sdpa"), ("flex", "flex_attention")]
)
def test_attention_is_called_as_transformers_calls_it(target, ours, theirs):
    """``flash`` is one of sdpa's kernels here; to transformers it would be a kernel of the hub."""
    plan = planned("--method", "lora")
    strategy = msgspec.structs.replace(plan.strategy, attention=ours)
    content, lost = written(target, msgspec.structs.replace(plan, strategy=strategy))
    assert content["attn_implementation"] == theirs
    assert ("attention" in lost) == (ours != theirs.partition("_")[0])


@pytest.mark.parametrize(
    ("more", "target", "words"),
    [
        (("--method", "full"), "axolotl", "precision=bf16-mixed with method=full"),
        (("--method", "qlora"), "hf-trainer", "--to trl, axolotl or llama-factory, which load it"),
        (("--method", "lora"), "unsloth", "the nearest is --to trl"),
        (BASE_AWAY, "trl", "offload=parameters of adapters' frozen base"),
        (BASE_AWAY, "accelerate", "offload=parameters of adapters' frozen base"),
    ],
)
def test_what_would_train_something_else_is_refused(tmp_path, capsys, more, target, words):
    path = tmp_path / "plan.yaml"
    assert main([*ASKED, *more, "-o", str(path)]) == 0
    assert main(["export", str(path), "--to", target]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_trl_reads_it(tmp_path, monkeypatch):
    trl = pytest.importorskip("trl")
    path = tmp_path / "trl.yaml"
    path.write_text(TARGETS["trl"](planned("--method", "qlora"), GIVEN).text)
    monkeypatch.setattr(sys, "argv", ["trl"])
    # A type is refused where the device has no units for it, and the plan's device is not here.
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    classes = (trl.ScriptArguments, trl.SFTConfig, trl.ModelConfig)
    script, trainer, model = trl.TrlParser(classes).parse_args_and_config(["--config", str(path)])
    assert script.dataset_name == "my/data"
    assert (trainer.max_length, trainer.packing) == (512, True)
    assert (model.load_in_4bit, model.use_bnb_nested_quant, model.lora_r) == (True, True, 16)


@pytest.mark.parametrize(
    "more", [("--method", "qlora"), ("--method", "dora"), ("--precision", "bf16")]
)
def test_axolotl_reads_it(more):
    pytest.importorskip("axolotl")
    from axolotl.utils.schemas.config import AxolotlInputConfig

    content, _ = written("axolotl", planned(*more))
    assert set(content) <= set(AxolotlInputConfig.model_fields), "it drops what it does not know"
    read = AxolotlInputConfig(**content)
    assert (read.sequence_len, read.max_steps) == (512, 100)
    assert read.adapter == (None if "--precision" in more else content["adapter"])
    assert read.micro_batch_size == content["micro_batch_size"]


@pytest.mark.few(only=["full"])  # YAML of QLoRA is read in test_read_trainers.py
@pytest.mark.parametrize("method", ["qlora", "full"])
def test_what_axolotl_was_given_is_read_back(method, tmp_path):
    """From the YAML alone, which names the model too."""
    precision = {"qlora": "bf16-mixed", "full": "bf16"}[method]
    more = ("--method", method, "--precision", precision, "--global-batch", "8")
    adapted = ("--upcast", "all", "--lora-rank", "8") if method == "qlora" else ()
    pinned = ("--micro-batch", "2", "--ac", "full", "--loss-chunks", "1", "--packing", "none")
    plan = planned(*more, *adapted, *pinned)
    path, again = tmp_path / "axolotl.yaml", tmp_path / "again.yaml"
    path.write_text(TARGETS["axolotl"](plan, GIVEN).text)
    given = ("plan", "--from", str(path), "--gpus", "rtx-4090", "--no-proof", "-o", str(again))
    assert main(given) == 0
    read = read_plan(again)
    assert msgspec.structs.replace(read.job, task="causal-lm") == plan.job
    same = ("micro_batch", "activation_checkpointing", "zero", "attention")
    assert [getattr(read.strategy, f) for f in same] == [getattr(plan.strategy, f) for f in same]
