"""``tune run``: what its command line says, as a file of its settings."""

import pytest
import yaml

from brimful.errors import InputError, UnsupportedError
from brimful.export.read_source import model_of, read_source
from brimful.programs.settings import has_settings, name_of, settings_file

RECIPE = "lora_finetune_single_device"
OWN = f"tune run {RECIPE} --config llama3_1/8B_qlora_single_device"
ADAMW = {"_component_": "torch.optim.AdamW", "lr": 3e-4}
QUANTIZATION = "torchtune.training.quantization"
CHUNKED = {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"}


def config(builder, **parts):
    """Write down what a file of torchtune's says of a run."""
    model = {"_component_": f"torchtune.models.{builder}", **parts.pop("model", {})}
    usual = {"optimizer": ADAMW, "loss": CHUNKED, "batch_size": 2, "dtype": "bf16"}
    return {"model": model, **usual, **parts}


ADAPTED = {"lora_attn_modules": ["q_proj", "v_proj"], "lora_rank": 8, "lora_alpha": 16}
CONFIGS = {
    "llama3_1/8B_qlora_single_device": config("llama3_1.qlora_llama3_1_8b", model=ADAPTED),
    "llama3_1/8B_full": config("llama3_1.llama3_1_8b", fsdp_reshard_after_forward=True),
    "llama3_1/8B_dpo": config(
        "llama3_1.lora_llama3_1_8b", model=ADAPTED,
        loss={"_component_": "torchtune.rlhf.loss.DPOLoss", "beta": 0.1},
    ),
    "qwen2_5/3B_lora": config(
        "qwen2_5.lora_qwen2_5_3b", model={**ADAPTED, "apply_lora_to_mlp": True},
        tokenizer={"_component_": "torchtune.models.qwen2_5.qwen2_5_tokenizer", "max_seq_len": 512},
    ),
    "gemma2/9B_full": config("gemma2.gemma2_9b", optimizer_in_bwd=True),
    "llama3/8B_qat": config(
        "llama3.llama3_8b",
        quantizer={"_component_": f"{QUANTIZATION}.Int8DynActInt4WeightQATQuantizer"},
    ),
    "llama3_1/70B_tp": config("llama3_1.llama3_1_70b", tensor_parallel_dim=8),
}  # fmt: skip


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """Lay torchtune's package and its configs where ``pip`` does."""
    (tmp_path / "site" / "torchtune").mkdir(parents=True)
    (tmp_path / "site" / "torchtune" / "__init__.py").write_text("")
    for name, content in CONFIGS.items():
        file = tmp_path / "site" / "recipes" / "configs" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(content))
    monkeypatch.syspath_prepend(tmp_path / "site")


def said(text):
    return yaml.safe_load(settings_file(text).read_text("utf-8"))


def test_torchtunes_own_configs_are_known_by_name():
    assert has_settings(OWN)
    file = settings_file(OWN)
    assert model_of(file) == "llama3.1-8b"
    assert name_of(file) == "tune"
    assert said(OWN)["tune"] == {"run": RECIPE}


def test_words_behind_a_file_stand_over_it(tmp_path):
    path = tmp_path / "a b.yaml"
    path.write_text(yaml.safe_dump({
        "model": {"_component_": "torchtune.models.llama2.lora_llama2_7b", "lora_rank": 8},
        "optimizer": {"_component_": "torch.optim.AdamW", "fused": True},
        "lr_scheduler": {"num_warmup_steps": 3}, "batch_size": 2,
    }))  # fmt: skip
    line = f"tune run {RECIPE} --config '{path}' batch_size=4 model.lora_rank=16 seed=None"
    found = said(f"{line} optimizer=bitsandbytes.optim.AdamW8bit ~lr_scheduler dataset.packed=True")
    assert found == {
        "model": {"_component_": "torchtune.models.llama2.lora_llama2_7b", "lora_rank": 16},
        "optimizer": {"_component_": "bitsandbytes.optim.AdamW8bit", "fused": True},
        "batch_size": 4, "seed": None, "dataset": {"packed": True}, "tune": {"run": RECIPE},
    }  # fmt: skip


def test_torchruns_flags_say_how_many_processes():
    line = "tune run --nnodes 2 --nproc_per_node 4 full_finetune_distributed"
    found = said(f"{line} --config=llama3_1/8B_full")
    assert found["tune"] == {"run": "full_finetune_distributed", "processes": 8}


def test_the_allocator_is_the_one_that_is_set():
    file = settings_file(f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False {OWN}")
    read = read_source(file, num_devices=1, num_layers=32)
    taken = {each.flag: each.value for each in read.taken}
    assert taken["allocator"] == "expandable_segments:False"


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_of_every_kind_are_read(name):
    file = settings_file(f"tune run full_finetune_distributed --config {name}")
    tp = yaml.safe_load(file.read_text("utf-8")).get("tensor_parallel_dim", 1)
    read = read_source(file, num_devices=8 if tp > 1 else 1, num_layers=32)
    flags = {each.flag for each in read.taken}
    assert flags >= {"method", "precision", "micro_batch", "optimizer", "loss_chunks"}


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        ("tune cp llama3_1/8B_full a.yaml", UnsupportedError, "tune cp is not read"),
        ("tune run generate --config generation", UnsupportedError, "trains nothing"),
        (f"tune run {RECIPE} batch_size=2", InputError, "names no --config"),
        (f"tune run {RECIPE} --config no/such", InputError, "there is no file no/such"),
        ("tune run --nproc_per_node gpu x --config y", InputError, "no number of processes"),
        (f"{OWN} packed", InputError, "assigns nothing"),
        (f"{OWN} --fast=1", InputError, "assigns nothing"),
        (f"{OWN} ~there.is.none", InputError, "not there"),
    ],
)
def test_what_is_no_launch_is_refused(line, error, words):
    with pytest.raises(error, match=words):
        settings_file(line)
