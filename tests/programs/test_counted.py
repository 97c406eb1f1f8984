"""How many GPUs a file says itself, and what is planned where ``--gpus`` says no number."""

import argparse

import pytest

from brimful.cli.main import main
from brimful.cli.sources import take_gpus
from brimful.export.read_source import content_of
from brimful.programs.counted import gpus_of
from brimful.programs.settings import settings_file

TRAINS = "train.py --model_name_or_path gpt2 --block_size 8 --per_device_train_batch_size 1"


@pytest.mark.parametrize(
    ("content", "num"),
    [
        ({"num_processes": 8, "distributed_type": "FSDP"}, 8),
        ({"parallelism": {"dp": 4, "tp": 2, "pp": 2, "pp_engine": "afab"}}, 16),
        ({"parallelism": {"data_parallel_shard_degree": -1, "tensor_parallel_degree": 2}}, None),
        ({"parallelism": {"data_parallel_shard_degree": 4, "tensor_parallel_degree": 2}}, 8),
        ({"tune": {"run": "lora_finetune_single_device"}}, 1),
        ({"tune": {"run": "lora_finetune_distributed", "processes": 4}}, 4),
        ({"devices": 4, "num_nodes": 2, "train": {}}, 8),
        ({"devices": "auto"}, None),
        ({"base_model": "gpt2"}, None),
    ],
)
def test_a_file_says_how_many_gpus_it_is_for(content, num):
    found = gpus_of(content)
    assert (None if found is None else found.num) == num


@pytest.mark.parametrize(
    ("line", "num"),
    [
        (f"torchrun --nnodes 2 --nproc_per_node=4 {TRAINS}", 8),
        (f"torchrun --nproc_per_node gpu {TRAINS}", None),
        (f"deepspeed --include localhost:0,1,2 {TRAINS}", 3),
        (f"CUDA_VISIBLE_DEVICES=0 python {TRAINS}", 1),
        (f"CUDA_VISIBLE_DEVICES=0,1 python {TRAINS}", None),
        (f"CUDA_VISIBLE_DEVICES=0,1 accelerate launch {TRAINS}", 2),
        (f"accelerate launch {TRAINS}", None),
        ("CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train --model_name_or_path gpt2", 2),
        ("NPROC_PER_NODE=4 NNODES=2 swift sft --model Qwen/Qwen3-8B", 8),
    ],
)
def test_a_command_line_says_how_many_processes_it_starts(line, num):
    found = gpus_of(content_of(settings_file(line)))
    assert (None if found is None else found.num) == num


@pytest.mark.parametrize(
    ("typed", "gpus", "beside"),
    [
        ("rtx-4090", "2xrtx-4090", ""),
        ("4xrtx-4090", "4xrtx-4090", "says 2 GPUs (num_processes): --gpus says 4"),
        ("2xrtx-4090", "2xrtx-4090", ""),
        (None, None, ""),
    ],
)
def test_its_number_counts_where_none_is_typed(tmp_path, typed, gpus, beside):
    path = tmp_path / "two.yaml"
    path.write_text("distributed_type: FSDP\nnum_processes: 2\n", "utf-8")
    args = argparse.Namespace(source=path, gpus=typed)
    take_gpus(args)
    assert args.gpus == gpus
    assert args.beside_gpus.endswith(beside)
    assert bool(args.beside_gpus) == bool(beside)


def test_a_file_is_estimated_as_it_is_planned(tmp_path, capsys):
    path = tmp_path / "sft.yaml"
    path.write_text(
        "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\nfinetuning_type: lora\n"
        "cutoff_len: 512\nper_device_train_batch_size: 1\nbf16: true\n",
        "utf-8",
    )
    assert main(["estimate", "--from", str(path), "--gpus", "rtx-4090"]) == 0
    said = capsys.readouterr()
    assert "LoRA of qwen3-0.6b at 512 tokens on 1 x RTX 4090" in said.out
    assert "sft.yaml: taken: task=chat" in " ".join(said.out.split())
