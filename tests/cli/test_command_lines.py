"""Command lines of trainers that are not installed: their settings are read, and planned here."""

import pytest
import yaml

from brimful.programs.settings import name_of, settings_file

SFT = (
    "trl sft --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 2 "
    "--max_length 512 --bf16 --gradient_checkpointing"
)

TITAN = "torchrun --nproc-per-node 8 -m torchtitan.train --module llama3 --config llama3_70b"


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
    assert "FITS      full training of llama-3.1-70b at 8,192 tokens on 64 x H100" in said.out
