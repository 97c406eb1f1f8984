"""Megatron-LM's ``pretrain_*.py``: what of a command line is changed, and which ranks are run.

What needs files (data, tokenizers, checkpoints, logs) is replaced by Megatron's own mock data and a
tokenizer that is a number; schedules of learning rates end with the steps that are run; times, of
which there are none, are logged without choosing among them. Everything else is left to Megatron's
parser, in the version that is installed.

Source: Megatron-LM 0.20 (``megatron/training/arguments.py``, ``megatron/core/parallel_state.py``).
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from brimful.errors import InputError, NotInstalledError
from brimful.megatron.command_line import Kind
from brimful.megatron.layout import KEEPS_NARROW
from brimful.megatron.pipeline import kinds_of_stages
from brimful.programs.base import STEPS, Command, Flags, Program, Rank, flags_of
from brimful.programs.megatron_deepspeed import in_words_of_megatron

SCRIPT = "pretrain_gpt.py"
BERT = "pretrain_bert.py"
_T5, _HYBRID = "pretrain_t5.py", "pretrain_hybrid.py"
SCRIPTS = {
    SCRIPT: "",
    "pretrain_mamba.py": "",
    _HYBRID: "",
    _T5: "examples/t5",
    BERT: "examples/bert",
}
"""Where each lies in a checkout: at its top, or in a folder (older checkouts: all at the top)."""
WITH_FORMULA: Mapping[str, Kind] = {SCRIPT: "gpt", BERT: "bert", _T5: "t5"}
_OF_DOCUMENTS = frozenset({_T5, BERT})
"""Those whose data sets have no mock data."""
NODE = 8
"""GPUs that are taken where nothing says how many there are: a node of this many, or more."""
_STEPS = 2
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
"""Megatron refuses more than one with tensor parallelism, and one with FSDP."""
_FSDP = ("--use-megatron-fsdp", "--use-torch-fsdp2")
_ASSUMED = ("triton", "transformer-engine", "flash-attn", "apex")
_GPT2_VOCAB = 50257
"""Rows of GPT-2's own ``vocab.json``."""
_OF_TOKENIZER = {
    "GPT2BPETokenizer": _GPT2_VOCAB,
    "Llama2Tokenizer": 32000,
    "TikTokenizer": 2**17,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
}
"""Of tokenizers whose kind says how many there are (TikTokenizer: the default; BERT: its own two
vocabularies)."""
_OF_FILE = {"nemotron_2_256k.model": 256_000}
"""Of tokenizers that Megatron's own examples and tests name by their file."""
_THOUSANDS = re.compile(
    r"(?:.*[^0-9a-z])?(\d{2,3})k(?:[^0-9a-z].*)?\.(?:model|vocab)", re.IGNORECASE
)
"""A tokenizer's file whose name says how many thousands of words it has."""
_EVEN = "every expert gets as many tokens; a router of random weights is uneven"
_MOCK = (
    f"{_STEPS} steps on Megatron's mock data, from nothing: no data, checkpoint or log is read or "
    f"written"
)
_FILES = frozenset({
    "--data-path", "--train-data-path", "--valid-data-path", "--test-data-path", "--data-args-path",
    "--per-split-data-args-path", "--data-cache-path", "--vocab-file", "--merge-file",
    "--tokenizer-model", "--tokenizer-type", "--tiktoken-pattern", "--load", "--save",
    "--pretrained-checkpoint", "--tensorboard-dir", "--exit-on-missing-checkpoint", "--finetune",
    "--use-checkpoint-args", "--auto-detect-ckpt-format", "--use-persistent-ckpt-worker",
    "--no-use-tokenizer-model-from-checkpoint-args", "--memory-snapshot-path",
    "--record-memory-history", "--profile", "--timing-log-option", "--vocab-size",
    "--mock-data", "--no-mmap-bin-files",
})  # fmt: skip
"""Flags of files, and of what is done with them."""
_SCHEDULE = frozenset({
    "--train-iters", "--train-samples", "--eval-iters", "--eval-interval", "--exit-interval",
    "--exit-duration-in-mins", "--save-interval", "--rampup-batch-size", "--min-lr",
    "--use-checkpoint-opt_param-scheduler", "--override-opt_param-scheduler", "--full-validation",
})  # fmt: skip
_OF_T5 = frozenset({"--encoder-num-layers", "--decoder-num-layers", "--decoder-seq-length"})
_OF_HYBRID = ("--hybrid-", "--mamba-")
_PREFIXES = (
    "--lr-", "--wandb-", "--profile-", "--fim-", "--dist-ckpt-", "--ckpt-fully-", "--ckpt-assume-",
    "--ckpt-convert-", "--async-", "--no-load-", "--no-save-", "--non-persistent-",
)  # fmt: skip
"""Beginnings of flags of schedules, logs and checkpoints."""


class Told(NamedTuple):
    """What a command line says, whether or not anything is installed.

    Attributes:
        name: The script's.
        flags: Its own.
        world_size: Processes.
        ranks: One of each kind of stage.
        stages: Which stage each of them is.
        vocab: Rows of the vocabulary, before Megatron pads them.
        notes: What was taken for granted, a sentence each.
    """

    name: str
    flags: Flags
    world_size: int
    ranks: tuple[Rank, ...]
    stages: tuple[int, ...]
    vocab: int
    notes: tuple[str, ...]


def told(command: Command, world_size: int | None) -> Told:
    """Read a command line.

    ``world_size``: processes, where that is asked for. Raises InputError: a degree does not divide
    the world, or nobody says how long the vocabulary is.
    """
    name = Path(command.script).name
    flags, read_as = in_words_of_megatron(flags_of(command.arguments, name))
    size, notes = _world(flags, world_size or command.num_processes, command.environment)
    notes = (*read_as, *notes)
    vocab, of = _vocabulary(flags, name)
    if flags.has("--num-experts"):
        notes = (*notes, _EVEN)
    rows = f"{vocab:,} rows of vocabulary {of}, before Megatron pads them"
    notes = (*notes, rows, *command.notes)
    return Told(name, flags, size, _ranks(flags, size), kinds_of_stages(flags), vocab, notes)


def program(command: Command, world_size: int | None) -> Program:
    """Return what is run for a command line.

    ``world_size``: processes, where that is asked for. Raises InputError: a degree does not divide
    the world, or something is not installed.
    """
    name, flags, size, ranks, _, vocab, notes = told(command, world_size)
    changed = (
        "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", str(vocab),
        "--train-iters", str(_STEPS), "--eval-iters", "0", "--eval-interval", "1000",
        "--lr-decay-style", "constant", "--timing-log-option", "all",
    )  # fmt: skip
    kept = tuple(word for flag, given in flags.values if _stays(flag) for word in (flag, *given))
    return Program(
        name=f"Megatron-LM's {name}",
        argv=(*_around(name), _script(command.script), *kept, *changed),
        world_size=size,
        ranks=ranks,
        assume=_ASSUMED,
        environment={_CONNECTIONS: "8" if _is_fsdp(flags) else "1", **command.environment},
        notes=(*notes, _MOCK),
    )


def script_of(folders: Iterable[Path], flags: Mapping[str, Any]) -> str:
    """Return the script of a YAML of arguments, which does not name it.

    ``flags``: of the YAML, with their values; some are of one script alone, as is a vocabulary of
    word pieces, which is a text.
    """
    name = SCRIPT
    if _OF_T5 & set(flags):
        name = _T5
    elif any(flag.startswith(_OF_HYBRID) for flag in flags):
        name = _HYBRID
    elif str(flags.get("--vocab-file", "")).endswith(".txt"):
        name = BERT
    places = (folder / inside / name for folder in folders for inside in ("", SCRIPTS[name]))
    return next((str(place) for place in places if place.is_file()), name)


def _around(name: str) -> tuple[str, ...]:
    """Return what runs a script that needs rows of ours."""
    return (str(STEPS / "megatron_rows.py"),) if name in _OF_DOCUMENTS else ()


def _is_fsdp(flags: Flags) -> bool:
    return any(flags.has(flag) for flag in _FSDP)


def _stays(flag: str) -> bool:
    is_data = flag in _FILES or flag in _SCHEDULE or flag == KEEPS_NARROW
    return not is_data and not flag.startswith(_PREFIXES)


def _degrees(flags: Flags) -> Mapping[str, int]:
    tp = flags.first("--tensor-model-parallel-size", default=1)
    return {
        "tp": tp,
        "pp": flags.first("--pipeline-model-parallel-size", default=1),
        "cp": flags.first("--context-parallel-size", default=1),
        "ep": flags.first("--expert-model-parallel-size", default=1),
        "etp": flags.first("--expert-tensor-parallel-size", default=tp),
    }


def _world(
    flags: Flags, asked: int | None, environment: Mapping[str, str]
) -> tuple[int, tuple[str, ...]]:
    """Return how many processes there are, and what was taken for granted."""
    by = _degrees(flags)
    least = math.lcm(by["tp"] * by["pp"] * by["cp"], by["etp"] * by["ep"] * by["pp"])
    told = environment.get("WORLD_SIZE", "")
    size = asked or (int(told) if told.isdecimal() and int(told) else None)
    words = " x ".join(f"{name} {n}" for name, n in by.items() if n > 1) or "one GPU"
    if size is None:
        size = least * -(-NODE // least)
        note = f"{size} GPUs: nothing says how many; least for {words} is {least}"
        return size, (f"{note} (--world-size N says)",)
    if size % least:
        raise InputError(
            f"{size} GPUs are no multiple of {least}, which {words} needs; give --world-size "
            f"{least * -(-size // least)}, or other degrees"
        )
    return size, ()


def _ranks(flags: Flags, size: int) -> tuple[Rank, ...]:
    """Return one process of each kind of stage."""
    by = _degrees(flags)
    stages = by["pp"]
    if stages == 1:
        return (Rank(0, "every GPU does the same"),)
    is_inside = flags.has("--use-tp-pp-dp-mapping")
    step = by["tp"] * by["cp"] if is_inside else size // stages
    ends = {0: ", with the embedding", stages - 1: ", with the loss"}
    return tuple(
        Rank(step * stage, f"stage {stage + 1} of {stages}{ends.get(stage, '')}")
        for stage in kinds_of_stages(flags)
    )


def _vocabulary(flags: Flags, script: str) -> tuple[int, str]:
    """Return the rows of the vocabulary before Megatron pads them, and who says so."""
    if flags.has("--vocab-size"):
        return flags.first("--vocab-size", default=0), "by --vocab-size"
    of_script = "BertWordPieceLowerCase" if script == BERT else "GPT2BPETokenizer"
    kind = flags.text("--tokenizer-type") or of_script
    if flags.has("--padded-vocab-size"):
        return flags.first("--padded-vocab-size", default=0), "by --padded-vocab-size"
    words = Path(flags.text("--vocab-file") or "-")
    if kind == "GPT2BPETokenizer" and words.is_file():
        try:
            return len(json.loads(words.read_text("utf-8"))), f"in {words}"
        except (ValueError, TypeError):
            raise InputError(f"--vocab-file {words} is no JSON of tokens; give one") from None
    if kind in _OF_TOKENIZER:
        extra = flags.first("--vocab-extra-ids", default=0)
        return _OF_TOKENIZER[kind] + extra, f"of {kind}"
    model = flags.text("--tokenizer-model")
    if (rows := _known_model(model)) is not None:
        return rows, f"of {model}"
    if (found := _of_file(Path(model))) is not None:
        return found
    raise InputError(
        f"how many rows the vocabulary of {' '.join(filter(None, (kind, model)))} has is not known "
        f"here; add --vocab-size N to the command line"
    )


def _of_file(tokenizer: Path) -> tuple[int, str] | None:
    """Return the rows of a tokenizer that is known by its file, and who says so; None: it is not.

    What a file's name says in thousands is taken for granted.
    """
    if (rows := _OF_FILE.get(tokenizer.name)) is not None:
        return rows, f"of {tokenizer.name}"
    said = _THOUSANDS.fullmatch(tokenizer.name)
    return said and (int(said[1]) * 1000, f"as {tokenizer.name}'s name says (--vocab-size N)")


def _known_model(name: str) -> int | None:
    """Return the rows of a model that is known by the name of its tokenizer; None: it is not."""
    from brimful.models.config import load_model

    try:
        return load_model(name).vocab_size if name else None
    except InputError:
        return None


def _script(named: str) -> str:
    """Return where the program is."""
    found = next((path for path in _places(named) if path.is_file()), None)
    missing = [] if found else ["git clone --depth 1 https://github.com/NVIDIA/Megatron-LM"]
    if find_spec("transformer_engine") is None:
        missing.append("pip install --no-deps transformer-engine")
    others = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if others:
        missing.append(f"pip install {' '.join(others)}")
    if missing:
        raise NotInstalledError(
            f"Megatron-LM runs here as it is, and something of it is not installed: "
            f"{' && '.join(missing)}; then give the script's path in --from. brimful estimate "
            f"--from '...' has formulas for much of it, and needs none of that"
        )
    assert found is not None, "or it is missing"
    _check_python(found.parent / "pyproject.toml")
    return str(found)


def _check_python(project: Path) -> None:
    """Refuse a checkout that asks for a newer Python than this one."""
    text = project.read_text("utf-8") if project.is_file() else ""
    found = _PYTHON.search(text)
    if found and sys.version_info < (asked := (int(found[1]), int(found[2]))):
        raise InputError(
            f"{project} asks for Python {asked[0]}.{asked[1]} and this is "
            f"{sys.version_info[0]}.{sys.version_info[1]}; install Brimful in an environment of "
            f"that Python, or take an older Megatron-LM"
        )


_PYTHON = re.compile(r'^requires-python\s*=\s*">=\s*(\d+)\.(\d+)', re.MULTILINE)
_NEEDED = {
    "einops": "einops",
    "nvdlfw_inspect": "nvdlfw-inspect",
    "onnx": "onnx",
    "onnxscript": "onnxscript",
    "pybind11": "pybind11",
    "pydantic": "pydantic",
    "regex": "regex",
    "torch": "torch",
}
"""Packages that Megatron's training and Transformer Engine's Python import, by their modules."""


def _places(named: str) -> Iterator[Path]:
    yield Path(named)
    name = Path(named).name
    for inside in ("", SCRIPTS[name]):
        yield Path("Megatron-LM", inside, name)
    try:
        spec = find_spec("megatron.training")
    except ModuleNotFoundError:
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for inside in ("", SCRIPTS[name]):
            yield Path(folder).parents[1] / inside / name
