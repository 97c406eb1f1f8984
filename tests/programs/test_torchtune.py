"""``tune run``: what its command line says, as a file of its settings."""

import pytest
import yaml

from brimful.errors import InputError, UnsupportedError
from brimful.export.read_source import model_of, read_source
from brimful.programs.settings import has_settings, name_of, settings_file
from brimful.programs.torchtune import _shipped

RECIPE = "lora_finetune_single_device"
OWN = f"tune run {RECIPE} --config llama3_1/8B_qlora_single_device"


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


@pytest.mark.few(5)
@pytest.mark.parametrize("name", sorted({*_shipped()} - {"dev/qwen3B_async_grpo"}))
def test_every_config_of_its_own_is_read(name):
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
