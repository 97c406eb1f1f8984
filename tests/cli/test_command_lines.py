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


def test_what_is_typed_beside_it_is_planned_too(brimful, tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("h100-80gb: 5000\n", "utf-8")
    limits = ("--deadline", "2h", "--money-budget", "1usd", "--prices", prices)
    asked = ("estimate", "--gpus", "h100", "--from", SFT, "--world-size", 2, *limits)
    said = brimful(*asked, "--steps", 7, "--micro-batch", 1, "--stage-blocks", "14,14")
    words = " ".join(said.out.split())
    assert "planned in Brimful's own loop, without --stage-blocks" in said.err
    assert "on 2 x H100" in words
    assert "micro-batch 1 x 2" in words
    assert "run 7 steps" in words
    assert "(5,000 a GPU-hour)" in words
    assert "in time for the deadline of 2 h; " in words
    assert " more than 1.00 USD" in words


def test_torchtitans_own_configuration_is_planned(brimful, monkeypatch):
    monkeypatch.setattr("brimful.programs.torchtitan.find_spec", lambda _: None)
    said = brimful("estimate", "--gpus", "8x8xh100", "--from", TITAN)
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


def test_a_config_of_torchtunes_is_planned(brimful, tmp_path):
    path = tmp_path / "1B_full.yaml"
    path.write_text(
        "model: {_component_: torchtune.models.llama3_2.llama3_2_1b}\n"
        "optimizer: {_component_: torch.optim.AdamW, lr: 2e-5}\n"
        "loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}\n"
        "batch_size: 4\ndtype: bf16\noptimizer_in_bwd: true\n",
        "utf-8",
    )
    line = f"tune run full_finetune_single_device --config {path}"
    paged = "optimizer=bitsandbytes.optim.PagedAdamW8bit optimizer_in_bwd=False"
    asked = f"{line} tokenizer.max_seq_len=512 {paged}"
    said = brimful("plan", "--gpus", "a100-80gb", "--from", asked)
    assert said.code == 0
    assert "FITS      full training of llama-3.2-1b at 512 tokens on 1 x A100 SXM 80GB" in said.out
    words = " ".join(said.out.split())
    assert "LinearCrossEntropyLoss in 8 chunks keeps each until backward, 5 bytes a logit" in words
    assert "of optimizer state in managed memory, all beside the peak" in words
    assert "PagedAdamW8bit" not in words
    assert "numbers are of Brimful's own loop" in words
    assert "--for torchtune" not in words


def test_rollouts_of_torchtune_are_left_room_for_by_what_its_file_says(brimful, tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(
        "model: {_component_: torchtune.models.llama3_2.llama3_2_3b}\n"
        "tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer}\n"
        "optimizer: {_component_: torch.optim.AdamW, lr: 1e-5}\n"
        "loss: {_component_: torchtune.dev.rl.loss.GRPOSimpleLoss}\n"
        "batch_size: 1\ngrpo_samples: 16\nmax_generated_tokens: 512\ndtype: bf16\n",
        "utf-8",
    )
    line = f"tune run dev/grpo_full_finetune_distributed --config {path}"
    said = brimful("plan", "--gpus", "8xa100-80gb", "--from", f"{line} tokenizer.max_seq_len=512")
    assert said.code == 2
    assert "--task grpo (reinforcement learning) is not run by this version" in said.err
    words = " ".join((said.out + said.err).split())
    assert "KV cache of 16 x 1,024 tokens" in words


def test_a_builder_that_is_not_known_asks_for_a_model(brimful, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("model: {_component_: torchtune.models.llama2.llama2}\n", "utf-8")
    said = brimful("plan", "--gpus", "h100", "--from", path)
    assert said.code == 2
    assert "builds torchtune.models.llama2.llama2, which is no model that is known" in said.err


def test_where_megatron_is_not_installed_its_formulas_answer(brimful):
    line = (
        "pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --bf16 "
        "--seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --vocab-size 32000 "
        "--global-batch-size 2"
    )
    said = brimful("simulate", "--gpus", "2xh100", "--from", line)
    assert (said.code, said.err.count("something of it is not installed")) == (2, 1)
    assert said.out.startswith("instead   predicted by formulas")
    assert "\nFITS " in said.out
