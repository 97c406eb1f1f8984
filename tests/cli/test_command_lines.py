"""Command lines of trainers that are not installed: their settings are read, and planned here."""

import pytest
import yaml

from brimful.programs.settings import name_of, settings_file

SFT = (
    "trl sft --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 2 "
    "--max_length 512 --bf16 --gradient_checkpointing"
)

TITAN = "torchrun --nproc-per-node 8 -m torchtitan.train --module llama3 --config llama3_8b"


def test_flags_are_the_file_that_the_program_would_read():
    file = settings_file(SFT)
    assert yaml.safe_load(file.read_text("utf-8")) == {
        "model_name_or_path": "Qwen/Qwen3-0.6B",
        "per_device_train_batch_size": 2,
        "max_length": 512,
        "bf16": True,
        "gradient_checkpointing": True,
    }
    assert name_of(file) == "trl"


def test_pairs_are_known_by_their_loss():
    file = settings_file("trl dpo --model_name_or_path Qwen/Qwen3-0.6B")
    assert yaml.safe_load(file.read_text("utf-8"))["loss_type"] == "sigmoid"


def test_words_behind_a_file_stand_over_it(tmp_path):
    (tmp_path / "a.yaml").write_text("model_name_or_path: gpt2\ncutoff_len: 1024\n", "utf-8")
    file = settings_file(f"llamafactory-cli train {tmp_path / 'a.yaml'} cutoff_len=512")
    assert yaml.safe_load(file.read_text("utf-8"))["cutoff_len"] == 512


def test_megatron_has_no_file_of_settings():
    assert settings_file("torchrun pretrain_gpt.py --num-layers 2") is None


@pytest.mark.parametrize("verb", ["estimate", "simulate"])
def test_what_is_not_installed_is_planned_by_our_own_loop(brimful, monkeypatch, verb):
    monkeypatch.setattr("brimful.programs.trl.find_spec", lambda _: None)
    said = brimful(verb, "--gpus", "h100", "--from", SFT)
    assert said.code == 0
    assert "here its settings are planned in Brimful's own loop" in said.err
    assert "  trl: taken: task=causal-lm" in said.out
    assert "FITS      full training of qwen3-0.6b at 512 tokens on 1 x H100" in said.out


def test_torchtitans_own_configuration_is_planned(brimful, monkeypatch):
    monkeypatch.setattr("brimful.programs.torchtitan.find_spec", lambda _: None)
    said = brimful("simulate", "--gpus", "8x8xh100", "--from", TITAN)
    assert said.code == 0
    assert "planned in Brimful's own loop" in said.err
    assert "FITS      full training of llama-3.1-8b at 8,192 tokens on 64 x H100" in said.out


@pytest.mark.parametrize("is_typed", [True, False])
def test_a_file_of_grpo_is_answered_by_its_update_beside_what_writes(brimful, tmp_path, is_typed):
    words = "--model_name_or_path Qwen/Qwen2.5-0.5B --bf16 --use_vllm --vllm_mode colocate --beta 1"
    path = tmp_path / "grpo.yaml"
    path.write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nbf16: true\nuse_vllm: true\nvllm_mode: colocate\n"
        "beta: 1.0\nnum_generations: 8\noutput_dir: x\n",
        "utf-8",
    )
    said = brimful(
        "plan", "--gpus", "a100-80gb", "--from", f"trl grpo {words}" if is_typed else str(path)
    )
    assert said.code == 2
    assert "reinforcement learning" in said.err
    told = " ".join(said.out.split())
    assert "vllm_gpu_memory_utilization=0.3" in told
    assert "reference model 942.29 MiB (beta)" in told
    assert "FITS      full training of qwen2.5-0.5b at 768 tokens" in said.out
