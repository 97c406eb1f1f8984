"""Arguments of programs on top of the Trainer."""

import pytest

from brimful.cli.for_program import MEGATRON, OWN, PROGRAMS
from brimful.errors import InputError
from brimful.export import TARGETS
from brimful.programs import arguments, llama_factory, trl
from brimful.programs.arguments import read_arguments, scalar, whole
from brimful.programs.base import Command
from brimful.programs.reading import read_program


def test_words_behind_a_file_are_over_it(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text("cutoff_len: 512\nbf16: true\n")
    told = read_arguments([str(path), "cutoff_len=1024", "bf16=false", "template=llama3"])
    assert told == {"cutoff_len": 1024, "bf16": False, "template": "llama3"}


def test_a_sentence_has_a_files_words_as_they_are_and_each_once():
    keys = {"--bf16": r"C:\1\n.yaml --tp", "--tp": "tensor", "--tp-comm": "comm"}
    told = Command("x.py", (), {}, None, keys=keys)
    assert told.in_its_words("--bf16, --tp and --tp-comm") == r"C:\1\n.yaml --tp, tensor and comm"
    assert Command("x.py", (), {}, None).in_its_words("--tp") == "--tp"


@pytest.mark.parametrize("words", [[], ["cutoff_len=512"]])
def test_without_a_file_nothing_is_run(words):
    with pytest.raises(InputError, match="no YAML of arguments was given"):
        read_arguments(words)


def test_a_word_that_assigns_nothing_is_refused(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text("cutoff_len: 512\n")
    with pytest.raises(InputError, match="assigns nothing; say key=value"):
        read_arguments([str(path), "bf16"])


@pytest.mark.parametrize("value", ["many", True, 0, -1, 1.5, [2]])
def test_a_size_is_a_whole_number(value):
    with pytest.raises(InputError, match="no whole number of 1 or more"):
        whole({"max_length": value}, "max_length", 1024)
    assert whole({"max_length": None}, "max_length", 1024) == 1024


def test_a_text_that_is_no_yaml_is_a_text():
    assert scalar("[unclosed") == "[unclosed"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("trl grpo --config x.yaml", "trl grpo is not run by this version"),
        ("llamafactory-cli chat x.yaml", "llamafactory-cli chat is not run by this version"),
    ],
)
def test_what_trains_nothing_that_is_run_here_is_refused(line, words):
    with pytest.raises(InputError, match=words):
        read_program(line, None)


@pytest.fixture
def installed(monkeypatch):
    """Let both seem to be installed: what is asked of them here is their place and version."""
    for module in (trl, llama_factory, arguments):
        monkeypatch.setattr(module, "find_spec", lambda _: type("Spec", (), {"origin": "/x/y.py"}))
    for module in (trl, llama_factory):
        monkeypatch.setattr(module, "version", lambda _: "1.0")


@pytest.mark.usefixtures("installed")
def test_data_is_replaced_and_everything_else_is_told():
    program = trl.program_of("sft", {
        "model_name_or_path": "org/model", "dataset_name": "org/data", "max_length": 64,
        "gradient_accumulation_steps": 8, "bf16": True, "num_train_epochs": 3,
    }, 2)  # fmt: skip
    files = dict(program.files)
    assert "dataset_name: <folder>/rows" in files["config.yaml"]
    assert "gradient_accumulation_steps: 2" in files["config.yaml"]
    assert "bf16: true" in files["config.yaml"]
    assert "num_train_epochs" not in files["config.yaml"]
    assert len(files["rows/train.jsonl"].splitlines()) == 8 * 2 * 2  # TRL's own micro-batch
    assert program.world_size == 2


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("stage", ["pt", "sft", "dpo"])
def test_rows_are_named_where_llama_factory_looks(stage):
    program = llama_factory.program_of({"stage": stage, "cutoff_len": 32}, 1)
    files = dict(program.files)
    assert '"file_name": "rows/train.jsonl"' in files["dataset_info.json"]
    assert "dataset: rows" in files["train.yaml"]


@pytest.mark.usefixtures("installed")
def test_a_size_that_is_no_number_is_refused():
    with pytest.raises(InputError, match="max_length is long"):
        trl.program_of("sft", {"max_length": "long"}, 1)


def test_every_target_that_is_a_program_may_be_planned_for():
    assert set(PROGRAMS) - {OWN, MEGATRON} == set(TARGETS) - {"torchrun", "slurm"}
