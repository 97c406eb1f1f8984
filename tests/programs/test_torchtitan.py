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


@pytest.fixture
def toml(tmp_path, monkeypatch):
    """A torchtitan of 2025 in the folder where the command is given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "8b.toml").write_text('[model]\nname = "llama3"\n', "utf-8")
    return "8b.toml"


@pytest.mark.parametrize(
    ("line", "run", "size", "allocator"),
    [
        ("CONFIG_FILE={} ./run_train.sh", ("-m", "torchtitan.train"), 8, True),
        ("NGPU=4 CONFIG_FILE={} ./run_llama_train.sh", ("train.py",), 4, True),
        ("torchrun --nnodes 2 --nproc-per-node 8 titan/train.py --job.config-file {}",
         ("titan/train.py",), 16, False),
        ("torchrun --nproc-per-node 2 -m torchtitan.train --job.config_file={}",
         ("-m", "torchtitan.train"), 2, False),
    ],
)  # fmt: skip
def test_a_toml_file_is_given_to_what_ran_it(toml, line, run, size, allocator):
    line = line.format(toml)
    assert is_program(line)
    program = read_program(line, None)
    assert program.argv[3 : 3 + len(run)] == run
    assert (program.world_size, len(program.ranks)) == (size, 1)
    assert ("PYTORCH_ALLOC_CONF" in program.environment) == allocator


def test_stages_are_those_of_the_toml_file_unless_a_flag_says_so(toml, tmp_path):
    (tmp_path / toml).write_text("[parallelism]\npipeline_parallel_degree = 2\n", "utf-8")
    line = f"CONFIG_FILE={toml} ./run_train.sh"
    assert len(read_program(line, None).ranks) == 2
    flag = "--parallelism.pipeline_parallel_degree"
    assert len(read_program(f"{line} {flag} 4", None).ranks) == 4
    with pytest.raises(InputError, match=r"none\.toml cannot be read"):
        read_program("CONFIG_FILE=none.toml ./run_train.sh", None)
