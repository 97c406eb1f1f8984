"""The length of a run in passes over the rows that are there, and files as TRL loads them."""

import json

import pytest
import yaml

CHAT = {
    "messages": [
        {"role": "user", "content": "Why? " * 40},
        {"role": "assistant", "content": "Because. " * 40},
    ]
}
TOKENS = (5 * 40 + 9 * 40) // 4
NUM_ROWS = 500
ASK = (
    "llama-3.2-1b", "--gpus", "h100-80gb", "--method", "lora", "--seq-len", 512, "--global-batch",
    16, "--no-proof",
)  # fmt: skip


@pytest.fixture
def chats(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(f"{json.dumps(CHAT)}\n" * NUM_ROWS, "utf-8")
    return path


def exported(brimful, tmp_path, to, data, *more):
    plan = tmp_path / "plan.yaml"
    assert brimful("plan", *ASK, *more, "-o", plan).code == 0
    found = brimful("export", plan, "--to", to, "--data", data)
    return yaml.safe_load(found.out), " ".join(found.err.split())


@pytest.mark.parametrize(("to", "key"), [("trl", "num_train_epochs"), ("axolotl", "num_epochs")])
def test_three_passes_over_rows_that_are_there_are_three(brimful, tmp_path, chats, to, key):
    asked = ("--task", "chat", "--tokens", 3 * NUM_ROWS * TOKENS)
    content, words = exported(brimful, tmp_path, to, chats, *asked)
    assert content[key] == 3
    assert "max_steps" not in content
    assert f"500 rows of some {TOKENS} tokens" in words
    assert "3 epochs, 96 steps" in words


def test_part_of_a_pass_is_steps(brimful, tmp_path, chats):
    asked = ("--task", "chat", "--tokens", int(2.5 * NUM_ROWS * TOKENS))
    content, _ = exported(brimful, tmp_path, "trl", chats, *asked)
    assert content["max_steps"] == round(2.5 * NUM_ROWS / 16)


def test_of_rows_that_are_not_here_it_is_said_how_steps_were_counted(brimful, tmp_path):
    asked = ("--task", "chat", "--tokens", 8192 * 10)
    content, words = exported(brimful, tmp_path, "trl", "owner/chats", *asked)
    assert content["max_steps"] == 10
    assert content["dataset_name"] == "owner/chats"
    assert "10 steps take every row for 512 tokens" in words


@pytest.mark.parametrize("more", [("--steps", 7), ("--packing", "wrapped", "--tokens", 8192)])
def test_steps_and_packed_rows_stay_as_they_were_asked_for(brimful, tmp_path, chats, more):
    content, words = exported(brimful, tmp_path, "trl", chats, *more)
    assert content["max_steps"] in {1, 7}
    assert "every row" not in words


@pytest.mark.parametrize(
    ("name", "builder"),
    [("x.jsonl", "json"), ("x.csv", "csv"), ("x.json.gz", "json"), ("x.parquet", "parquet")],
)
def test_a_file_is_a_mixture_of_one_and_a_folder_is_a_name(brimful, tmp_path, name, builder):
    content, _ = exported(brimful, tmp_path, "trl", tmp_path / name, "--steps", 7)
    expected = {"path": builder, "data_files": str(tmp_path / name), "split": "train"}
    assert content["datasets"] == [expected]
    assert "dataset_name" not in content
    content, _ = exported(brimful, tmp_path, "trl", tmp_path, "--steps", 7)
    assert content["dataset_name"] == str(tmp_path)
