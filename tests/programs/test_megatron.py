"""A Megatron command line: how it is read, and what of it is changed."""

import pytest

from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.megatron.layout import KEEPS_NARROW
from brimful.megatron.pipeline import LAYOUT
from brimful.programs import megatron
from brimful.programs.base import Command, flags_of
from brimful.programs.megatron_deepspeed import in_words_of_megatron
from brimful.programs.reading import is_program, read_program

YAML = """\
ENV_VARS:
  NCCL_ALGO: Ring
  ELSEWHERE: ${FOLDER}/x
MODEL_ARGS:
  --num-layers: 12
  --tensor-model-parallel-size: 2
  --pipeline-model-parallel-size: 2
  --bf16: true
  --log-params-norm: false
  --lr: 1.0e-4
  --recompute-modules: "[layernorm mlp]"
  --data-path: ${DATA_PATH}/text
  --train-samples: 30000
"""


@pytest.fixture(autouse=True)
def there(monkeypatch, tmp_path):
    """Let the script be there, and what it needs."""
    script = tmp_path / "pretrain_gpt.py"
    script.write_text("")
    monkeypatch.setattr(megatron, "find_spec", lambda _name: object())
    monkeypatch.setattr(megatron, "_places", lambda _named: [script])
    return script


def read(line, size=None):
    return read_program(f"pretrain_gpt.py {line}", size)


def flags(program):
    return dict(flags_of(program.argv[1:], "pretrain_gpt.py").values)


def test_what_needs_files_is_replaced_and_the_rest_stays():
    program = read("--num-layers 2 --bf16 --data-path a b --vocab-file v --lr 1 --lr-decay-iters 9")
    found = flags(program)
    assert found["--num-layers"] == ("2",)
    assert found["--bf16"] == ()
    assert found["--lr"] == ("1",)
    assert not {"--data-path", "--vocab-file", "--lr-decay-iters"} & set(found)
    assert found["--tokenizer-type"] == ("NullTokenizer",)
    assert found["--vocab-size"] == ("50257",)
    assert found["--train-iters"] == ("2",)


@pytest.mark.parametrize(
    ("line", "size", "world"),
    [
        ("", None, 8),
        ("--tensor-model-parallel-size 4 --context-parallel-size 4", None, 16),
        ("--expert-model-parallel-size 4 --expert-tensor-parallel-size 1", None, 8),
        ("--pipeline-model-parallel-size=3", None, 9),
        ("--tensor-model-parallel-size 2", 2, 2),
    ],
)
def test_the_world_is_one_node_or_what_the_degrees_need(line, size, world):
    assert read(line, size).world_size == world


def test_a_world_that_degrees_do_not_divide_is_refused():
    with pytest.raises(InputError, match=r"6 GPUs are no multiple of 4, .*give --world-size 8"):
        read("--tensor-model-parallel-size 4", 6)


def test_one_process_of_each_kind_of_stage():
    line = "--pipeline-model-parallel-size 4 --tensor-model-parallel-size 2"
    assert [rank.rank for rank in read(line, 16).ranks] == [0, 4, 12]
    assert [rank.rank for rank in read(f"{line} --use-tp-pp-dp-mapping", 16).ranks] == [0, 2, 6]
    assert [rank.rank for rank in read("", 16).ranks] == [0]


def test_a_launcher_says_how_many_there_are():
    pytest.importorskip("torch")
    program = read_program("A=1 torchrun --nproc_per_node=4 pretrain_gpt.py --bf16", None)
    assert program.world_size == 4
    assert program.environment["A"] == "1"


def test_a_yaml_of_arguments(tmp_path):
    path = tmp_path / "model_config.yaml"
    path.write_text(YAML)
    for text in (str(path), f"pretrain_gpt.py {path}"):
        program = read_program(text, 8)
        found = flags(program)
        assert found["--recompute-modules"] == ("layernorm", "mlp")
        assert found["--bf16"] == ()
        assert "--log-params-norm" not in found
        assert "--data-path" not in found
        assert "--train-samples" not in found
        assert program.environment["NCCL_ALGO"] == "Ring"
        assert "ELSEWHERE" not in program.environment
        assert len(program.ranks) == 2


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("--num-layers: 12", "pretrain_gpt.py"),
        ("--encoder-num-layers: 12", "examples/t5/pretrain_t5.py"),
        ("--vocab-file: ${DATA}/vocab.txt", "examples/bert/pretrain_bert.py"),
        ('--hybrid-layer-pattern: "M-M*"', "pretrain_hybrid.py"),
    ],
)
def test_a_yaml_of_a_checkout_is_of_the_script_that_has_its_flags(tmp_path, flags, name):
    for inside in ("pretrain_gpt.py", "pretrain_hybrid.py", name):
        (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / inside).touch()
    path = tmp_path / "tests" / "model.yaml"
    path.parent.mkdir()
    path.write_text(f"MODEL_ARGS:\n  {flags}\n")
    content = dict([flags.replace('"', "").split(": ")])
    assert megatron.script_of(path.parents, content) == str(tmp_path / name)
    assert read_program(str(path), None).name.endswith(tmp_path.joinpath(name).name)


def test_data_sets_without_mock_data_get_rows_of_ours():
    program = read_program(
        "pretrain_t5.py --tokenizer-type BertWordPieceCase --vocab-extra-ids 100", 1
    )
    assert program.argv[0].endswith("megatron_rows.py")
    assert program.argv[1].endswith("pretrain_gpt.py")  # the fixture's only file
    assert dict(flags_of(program.argv[2:], "").values)["--vocab-size"] == ("29096",)


def test_a_checkout_for_a_newer_python_is_refused(there):
    there.with_name("pyproject.toml").write_text('requires-python = ">=9.1"\n')
    with pytest.raises(InputError, match=r"asks for Python 9\.1 and this is 3\."):
        read("--num-layers 2")


def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path):
    path = tmp_path / "other.yaml"
    path.write_text("a: 1\n")
    with pytest.raises(FileFormatError, match="MODEL_ARGS"):
        read_program(str(path), None)
    with pytest.raises(InputError, match=r"brimful pretend -- train\.py"):
        read_program("train.py --bf16", None)
    with pytest.raises(InputError, match="add --vocab-size"):
        read("--tokenizer-type HuggingFaceTokenizer --tokenizer-model nobody/knows-this")
    with pytest.raises(InputError, match="belongs to no flag"):
        read("12 --bf16")
    with pytest.raises(InputError, match="whole number"):
        read("--tensor-model-parallel-size two")


def test_what_is_not_installed_is_said_with_the_command(monkeypatch):
    monkeypatch.setattr(megatron, "find_spec", lambda _name: None)
    monkeypatch.setattr(megatron, "_places", lambda _named: [])
    with pytest.raises(InputError, match=r"git clone .* && pip install --no-deps transformer-eng"):
        megatron.program(Command("pretrain_gpt.py", (), {}, None), None)


def test_a_program_is_told_from_a_file():
    assert is_program("pretrain_gpt.py --bf16")
    assert is_program("torchrun a/pretrain_gpt.py")
    assert not is_program("ds_config.json")


def test_of_a_flag_that_stands_twice_in_a_yaml_the_last_counts(tmp_path):
    path = tmp_path / "twice.yaml"
    twice = "  --num-layers: 2\n  --num-layers: 3\n"
    lists = "  --seeds: 2 4\n  --one: '[moe_act]'\n  --list: '[0,1]'\n"
    path.write_text(f"MODEL_ARGS:\n{twice}{lists}")
    found = flags(read_program(str(path), None))
    assert found["--num-layers"] == ("3",)
    assert found["--seeds"] == ("2", "4")
    assert (found["--one"], found["--list"]) == (("moe_act",), ("[0,1]",))


def test_a_tokenizer_that_is_known_by_its_file_has_its_rows():
    line = "--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model x/nemotron_2_256k.model"
    assert flags(read(line))["--vocab-size"] == ("256000",)


@pytest.mark.parametrize(
    ("line", "connections"),
    [("--bf16", "1"), ("--use-megatron-fsdp", "8"), ("--use-torch-fsdp2", "8")],
)
def test_fsdp_is_given_more_than_one_connection(line, connections):
    assert read(line).environment["CUDA_DEVICE_MAX_CONNECTIONS"] == connections


BLOOM = (
    "--num-layers 70 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 --bf16 "
    "--checkpoint-activations --pad-vocab-size-to 250880 --position-embedding-type alibi "
    "--pp-partition-method type:transformer|embedding --deepspeed --deepspeed_config ds.json "
    "--deepspeed-activation-checkpointing"
)


@pytest.mark.parametrize("stage", ["", " --zero-stage 1", " --zero-stage 1.0", " --zero-stage 0"])
def test_megatron_deepspeeds_words_are_megatrons(stage):
    """Read past, they would be a run without checkpoints whose states nobody shards."""
    program = read(f"{BLOOM}{stage}", 48)
    found = flags(program)
    assert found["--recompute-granularity"] == ("full",)
    assert found["--recompute-num-layers"] == ("1",)
    assert found["--position-embedding-type"] == ("none",)
    assert found["--transformer-impl"] == ("local",)
    assert "--account-for-loss-in-pipeline-split" in found
    assert not any(flag.startswith(("--deepspeed", "--zero", "--checkpoint")) for flag in found)
    assert "--use-distributed-optimizer" in found
    given = flags_of(f"--{BLOOM.partition(' --')[2]}{stage}".split(), "pretrain_gpt.py")
    words, _ = in_words_of_megatron(given)
    assert words.has(KEEPS_NARROW) == stage.endswith(" 0")
    assert KEEPS_NARROW not in found
    assert any("DeepSpeed" in note for note in program.notes)
    assert found["--vocab-size"] == ("250880",)


def test_in_fp16_stage_0_parts_nothing():
    line = BLOOM.replace("--bf16", "--fp16")
    assert "--use-distributed-optimizer" not in flags(read(f"{line} --zero-stage 0", 48))
    assert "--use-distributed-optimizer" in flags(read(f"{line} --zero-stage 1", 48))


def test_parameters_that_deepspeed_parts_have_no_formula_there():
    with pytest.raises(UnsupportedError, match="--zero-stage 3 of Megatron-DeepSpeed has no"):
        read(f"{BLOOM} --zero-stage 3", 48)


def test_layers_that_do_not_divide_are_shared_as_deepspeed_shares_them():
    line = f"{BLOOM}".replace(" --pp-partition-method type:transformer|embedding", "")
    held = [place.count("t") for place in flags(read(line, 48))[LAYOUT][0].split("|")]
    assert held == [6] * 10 + [5, 5]
