"""torchtitan's configurations by name: what they say, and what flags say over them."""

import pytest

from brimful.errors import UnsupportedError
from brimful.export.read_source import program_of, read_source
from brimful.export.read_torchtitan import load_toml, model_of
from brimful.programs.settings import name_of, settings_file
from brimful.programs.titan_settings import _configs

LAUNCHED = "torchrun --nproc-per-node 8 -m torchtitan.train --module llama3 --config "


def taken(text, num_devices=64):
    file = settings_file(text)
    found = read_source(file, num_devices=num_devices, num_layers=80)
    return {each.flag: each.value for each in found.taken}, found


def test_a_configuration_is_read_by_its_name_as_torchtitans_toml():
    told, found = taken(f"{LAUNCHED}llama3_70b --training.disable_cuda_graphs")
    expected = {
        "dp_replicate": 1, "tp": 8, "pp": 1, "zero": 3, "micro_batch": 8, "seq_len": 8192,
        "precision": "bf16-mixed", "activation_checkpointing": ["full"], "loss_chunks": 8,
        "learning_rate": 1.5e-4, "steps": 1000,
    }  # fmt: skip
    assert told.items() >= expected.items()
    assert "compile" not in told
    assert found.unread == ("training.disable_cuda_graphs=true",)
    file = settings_file(f"{LAUNCHED}llama3_70b")
    assert (name_of(file), program_of(file)) == ("torchtitan", "torchtitan")
    assert model_of(load_toml(file)) == "llama-3.1-70b"


def test_flags_stand_over_it_also_in_tokens():
    told, _ = taken(
        f"{LAUNCHED}llama3_8b --training.max_context_length 4096 --optimizer.lr=8e-5 "
        "--training.num-tokens-per-microbatch-per-dp-rank 16384 --compile.enable "
        "--parallelism.tensor_parallel_degree 2 activation-checkpoint:full",
        num_devices=8,
    )
    assert (told["seq_len"], told["micro_batch"], told["tp"]) == (4096, 4, 2)
    assert told["compile"] == "blocks+loss"
    assert told["learning_rate"] == 8e-5
    assert told["activation_checkpointing"] == ["full"]
    shorter, _ = taken(f"{LAUNCHED}llama3_8b --training.max_context_length 4096", num_devices=8)
    assert (shorter["seq_len"], shorter["micro_batch"]) == (4096, 2)


def test_its_script_says_it_by_variables():
    told, _ = taken("MODULE=llama3 CONFIG=llama3_8b ./run_train.sh", num_devices=8)
    assert (told["seq_len"], told["activation_checkpointing"]) == (8192, ["alternate"])


def test_its_script_lets_segments_expand_and_torchrun_does_not():
    told, _ = taken("MODULE=llama3 CONFIG=llama3_8b ./run_train.sh", num_devices=8)
    assert told["allocator"] == "expandable_segments:True"
    assert taken(f"{LAUNCHED}llama3_8b", num_devices=8)[0]["allocator"] == ""
    by_hand = f"PYTORCH_ALLOC_CONF=expandable_segments:True {LAUNCHED}llama3_8b"
    assert taken(by_hand, num_devices=8)[0]["allocator"] == "expandable_segments:True"


@pytest.mark.parametrize("name", _configs())
def test_all_that_ship_are_read(name):
    file = settings_file(f"{LAUNCHED}{name}")
    assert read_source(file, num_devices=512, num_layers=80).left == ()
    assert not model_of(load_toml(file)).startswith(("llama3-", "qwen3-0_", "deepseek_v3-"))


def test_one_that_is_not_known_is_said():
    with pytest.raises(UnsupportedError, match="configuration llama3_9b is not known here"):
        settings_file(f"{LAUNCHED}llama3_9b")
