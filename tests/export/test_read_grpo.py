"""TRL's files of GRPO: the update, and what lies beside it."""

import pytest
import yaml

from brimful.export.read_grpo import rollouts_of
from brimful.export.read_source import program_of, read_source

GRPO = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct", "bf16": True, "output_dir": "out",
    "per_device_train_batch_size": 8, "num_generations": 8, "max_completion_length": 512,
    "use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.25, "beta": 0.04,
}  # fmt: skip


def written(tmp_path, **changes):
    path = tmp_path / "grpo.yaml"
    path.write_text(yaml.safe_dump({**GRPO, **changes}), "utf-8")
    return path


def test_the_update_is_of_rows_of_prompt_and_completion(tmp_path):
    path = written(tmp_path, max_prompt_length=256)
    found = read_source(path, num_devices=1, num_layers=24)
    told = {each.flag: each.value for each in found.taken}
    expected = {
        "task": "grpo", "seq_len": 768, "micro_batch": 8, "global_batch": 8, "loss_chunks": 2,
        "learning_rate": 1e-6, "packing": "none",
    }  # fmt: skip
    assert told.items() >= expected.items()
    assert program_of(path) == "trl"
    assert any("256 + 512 tokens, 8 to a prompt" in note for note in found.notes)
    (read,) = (note for note in found.notes if note.startswith("read for what lies beside"))
    assert "use_vllm=True, vllm_gpu_memory_utilization=0.25, vllm_mode=colocate" in read


@pytest.mark.parametrize(
    ("changes", "share", "has_reference"),
    [
        ({}, 0.25, True),
        ({"vllm_gpu_memory_utilization": None, "use_peft": True}, 0.3, False),
        ({"vllm_mode": "server", "beta": 0.0}, 0, False),
        ({"vllm_enable_sleep_mode": True}, 0, True),
        ({"use_vllm": False}, 0, True),
    ],
)
def test_what_lies_beside_it(changes, share, has_reference):
    found = rollouts_of({**GRPO, **changes})
    assert (found.share, found.has_reference) == (share, has_reference)
