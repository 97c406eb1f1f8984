"""Axolotl's YAML as it is run: on rows that are tokens, for two steps."""

import json

import pytest
import yaml

from brimful.errors import InputError, UnsupportedError
from brimful.programs import axolotl
from brimful.programs.axolotl import program_of
from brimful.programs.reading import read_program

CONTENT = {
    "base_model": "meta-llama/Llama-3.2-1B", "sequence_len": 64, "micro_batch_size": 2,
    "gradient_accumulation_steps": 8, "max_steps": 100, "wandb_project": "mine",
    "datasets": [{"path": "mine", "type": "alpaca"}], "val_set_size": 0.1, "saves_per_epoch": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(axolotl, "find_spec", lambda _: True)
    monkeypatch.setattr(axolotl, "version", lambda _: "0.19.0")


def test_data_logs_and_checkpoints_are_left_out():
    program = program_of(CONTENT, 2)
    files = dict(program.files)
    read = yaml.safe_load(files["train.yaml"])
    assert read["max_steps"] == read["gradient_accumulation_steps"] == 2
    assert {"wandb_project", "saves_per_epoch"}.isdisjoint(read)
    assert read["datasets"][0]["path"].endswith("rows/train.jsonl")
    rows = files["rows/train.jsonl"].splitlines()
    assert len(rows) == 8
    assert {len(each) for each in json.loads(rows[0]).values()} == {64}


@pytest.mark.parametrize("asked", [{"rl": "dpo"}, {"deepspeed": "zero3.json"}])
def test_what_is_not_run_is_refused(asked):
    with pytest.raises(UnsupportedError, match="of Axolotl is not run by this version"):
        program_of({**CONTENT, **asked}, 1)


def test_a_command_line_trains_a_file(tmp_path):
    path = tmp_path / "file.yml"
    path.write_text(yaml.safe_dump(CONTENT))
    assert read_program(f"axolotl train {path}", None).name == "Axolotl 0.19.0's train"
    with pytest.raises(InputError, match="axolotl merge-lora is not run"):
        read_program("axolotl merge-lora file.yml", None)
