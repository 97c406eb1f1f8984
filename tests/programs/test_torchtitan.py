"""torchtitan's command line as it is run: with a folder, stages, and processes of each kind."""

import pytest

from brimful.errors import InputError
from brimful.programs import torchtitan
from brimful.programs.reading import is_program, read_program

LINE = "torchrun --nproc-per-node 8 -m torchtitan.train --module llama3 --config llama3_8b"


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(torchtitan, "find_spec", lambda _: True)


def test_a_command_line_is_known_and_its_processes_are_the_launcher_s():
    assert is_program(LINE)
    program = read_program(LINE, None)
    assert program.world_size == 8
    assert [rank.rank for rank in program.ranks] == [0]
    assert program.argv[-4:] == ("--module", "llama3", "--config", "llama3_8b")
    assert dict(program.files)["tokenizer.json"]


def test_the_shell_script_takes_variables():
    line = "NGPU=4 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --training.steps 9"
    program = read_program(line, None)
    assert program.world_size == 4
    assert program.argv[-6:] == (
        "--module", "llama3", "--config", "llama3_8b", "--training.steps", "9",
    )  # fmt: skip


def test_a_pipeline_has_a_process_of_each_stage():
    degree = "--parallelism.pipeline_parallel_degree"
    program = read_program(f"{LINE} {degree} 4 activation-checkpoint:full", None)
    assert [rank.rank for rank in program.ranks] == [0, 2, 4, 6]
    assert program.ranks[1].words == "stage 2 of 4"
    with pytest.raises(InputError, match="3 stages of a pipeline do not divide 8 processes"):
        read_program(f"{LINE} {degree}=3", None)


@pytest.mark.parametrize("given", ["--module llama3", "--config llama3_8b"])
def test_a_configuration_that_is_not_named_is_asked_for(given):
    missing = "--config" if "module" in given else "--module"
    with pytest.raises(InputError, match=f"was given no {missing}"):
        read_program(f"python -m torchtitan.train {given}", None)
