"""What a script on top of a trainer says of its job, read off its text where it cannot be run.

Its calls name the model, the adapters and the arguments of the trainer, in the words of the flags
of ``other_flags``; so do the arguments that it declares, by what they are given or by their
defaults, and the file of settings that it is started with. Numbers that are computed, or come from
elsewhere, are not seen.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from brimful.cli.other_flags import HALVES, OF_WEIGHTS, is_of_jobs, is_of_models, names_of
from brimful.cli.script_configs import Written, written_config
from brimful.errors import BrimfulError
from brimful.export.read_grpo import LENGTHS, SHARE, TASK, chunks_of
from brimful.files.writing import is_there
from brimful.hardware.names import split_counts
from brimful.pretend.script_arguments import declared_in, find_given

_LOADS, _ADAPTS = "from_pretrained", ("get_peft_model", "LoraConfig")
_OF_TASKS = re.compile("(DPO|KTO|ORPO|CPO|GRPO|RLOO|PPO|OnlineDPO|Reward|GKD)(Config|Trainer)$")
"""TRL's calls that say what is learnt, by its name before them."""
_TASK_WORDS = {"OnlineDPO": "online-dpo"}
"""Of these names, those that are no words of ours in lower case."""
_TELLING = (
    _LOADS, *_ADAPTS, "ModelConfig", "BitsAndBytesConfig", "TrainingArguments", "SFTConfig",
    *(f"{each}Config" for each in ("DPO", "KTO", "ORPO", "CPO", "GRPO", "RLOO", "PPO", "Reward")),
)  # fmt: skip
"""How the names of calls end whose arguments say what is trained, and how: Transformers', PEFT's,
TRL's, and those of programs around them (``UnslothTrainingArguments``)."""
_ADAPTED = "--use-peft"
_CHECKPOINTS, _CHECKPOINTED = "gradient_checkpointing_enable", "--gradient-checkpointing"
_LENGTHS = names_of("--seq-len")
_BATCHES = names_of("--micro-batch") | names_of("--global-batch")
"""Flags that say the length of a text, and how many are read at once."""
_SIZES = frozenset({"--seq-len", "--micro-batch", "--global-batch"})
"""Flags that scripts call as we do."""
_TRIED = frozenset({"--max-steps", "--num-steps"})
"""Which by default are a trial's, as few as a test takes."""
_SETTINGS = frozenset({"--deepspeed", "--deepspeed-config", "--ds-config", "--config-file"})
"""Flags of scripts and of their launchers that name a file of settings; so do keywords of calls."""
_INITIALIZED = ("initialize", "config")
"""DeepSpeed's call that begins a training, and its keyword for the same."""
_OF_SETTINGS = (".json", ".yaml", ".yml")
_BESIDE = (
    ("fast_inference", "gpu_memory_utilization", 0.5),
    ("use_vllm", "vllm_gpu_memory_utilization", SHARE),
)  # fmt: skip
"""Keywords of Unsloth's (``unsloth/models/loader.py``) and TRL's calls: whether vLLM is in the same
process, what it takes of each card, and what that is where it is not said."""
_PLAIN_TRAINER, _LOADER = "Trainer", "DataLoader"
"""Lightning's trainer, whose arguments say a run (transformers' has these in another call); and
torch's loader, of which one that shuffles gives what is trained on."""
_OF_LIGHTNING = {
    "16": "fp16-mixed", "16-mixed": "fp16-mixed", "bf16": "bf16-mixed", "bf16-mixed": "bf16-mixed",
    "bf16-true": "bf16", "16-true": "fp16", "32": "fp32", "32-true": "fp32",
}  # fmt: skip
"""Its words for precision (``lightning/fabric/plugins/precision`` of 2.5), in ours."""
_MODE, _APART = "vllm_mode", "server"
"""TRL's keyword of where vLLM runs, and the word for a process and cards of its own."""
_TRAINERS = ("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig")
"""Arguments of trainers whose loss is of whole logits, but for Liger's."""
_OWN_LOSS = "unsloth"
"""In the text of a script whose loss is another, in any case."""
_FUSES = frozenset({"--use-liger", "--use-liger-kernel"})
"""The trainers' switch for Liger's kernels, its loss among them."""
_SHARDS = ("fsdp", "fully_shard", "deepspeed", "zeroredundancy", "zero_stage", "zero-stage")
"""In what is started, or in its text, where more is shared among GPUs than batches."""
_REPLICATED = ("--zero", "0", "--tp", "1", "--pp", "1")
"""What DistributedDataParallel is in our flags."""
_KEYWORDS_OF_MODEL = "--model-init-kwargs"


def built_by(script: str, given: Sequence[str], folder: Path) -> Written | None:
    """Write the configuration by which a script builds its model; None: its text says none.

    ``given``: all that it is started with. ``folder``: in which it is put.
    """
    if (tree := _read(script)) is None:
        return None
    values = _values(tree, given)
    live = list(_live(tree, values))
    return written_config(live, lambda node: _constant(node, values), folder)


def _read(script: str) -> ast.Module | None:
    try:
        return ast.parse(Path(script).read_text("utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def plan_of(
    script: str, gpus: str, given: Sequence[str] = (), *, built: Written | None = None
) -> list[str]:
    """Return the words of the ``brimful plan`` that asks about a script's job.

    ``given``: all that it is started with: its launcher's arguments and its own. ``built``: by
    which configuration it builds its model; None: it loads one. Returns the words behind
    ``brimful``; empty where its text names no model that is known.
    """
    if (tree := _read(script)) is None:
        return []
    values = _values(tree, given)
    live = list(_live(tree, values))
    calls = [(_name(call), call) for call in live if _name(call).endswith(_TELLING)]
    trainers = [(_PLAIN_TRAINER, call) for call in live if _name(call).endswith(_PLAIN_TRAINER)]
    naming = (_model(name, call, values) for name, call in [*calls, *trainers])
    model = next(filter(None, naming), "")
    if built is not None:
        model = str(built.folder)
    if not model:
        return []
    adapts = any(name in _ADAPTS for name, _ in calls)
    checkpoints = any(_name(call) == _CHECKPOINTS for call in live)
    said = [word for _, call in calls for each in call.keywords for word in _flag(each, values)]
    declared = [word for word in _declared(tree, given) if word.partition("=")[0] not in said]
    settings = _settings_of(script, live, values, given)
    return [
        "plan",
        model,
        "--gpus",
        gpus,
        *(["--from", settings] if settings else []),
        *(["--base", "same"] if adapts and built is not None and built.is_fp32 else []),
        *([_ADAPTED] if adapts else []),
        *([_CHECKPOINTED] if checkpoints and _CHECKPOINTED not in said else []),
        *(part for word in declared for part in word.split("=", 1)),
        *said,
        *_of_loop(live, values, [*declared, *said]),
        *(learnt := _learnt(live)),
        *_beside(live, values),
        *_as_trained(tree, calls, values, adapts=adapts, is_written=TASK in learnt),
        *([] if settings or _may_share(tree, given) else ["--offload", "none"]),
        *([] if settings or not _is_replicated(tree, gpus, given) else _REPLICATED),
    ]


def _learnt(calls: Sequence[ast.Call]) -> list[str]:
    """Return the task that a trainer of TRL's is of, if it is another than to write on."""
    found = (_OF_TASKS.search(_name(call)) for call in calls)
    name = next((each[1] for each in found if each is not None), "")
    return ["--task", _TASK_WORDS.get(name, name.lower())] if name else []


def _written(
    calls: Sequence[tuple[str, ast.Call]], values: Mapping[str, Any]
) -> tuple[str, str, str, str]:
    """Return how long the rows are that a model wrote itself, and what logits of them take."""
    given = {each.arg: _constant(each.value, values) for _, call in calls for each in call.keywords}
    said = (given.get(name) for name in LENGTHS)
    lengths = zip(said, LENGTHS.values(), strict=True)
    prompt, written = (each if type(each) is int else usual for each, usual in lengths)
    return "--seq-len", f"{prompt + written}", "--loss-chunks", f"{chunks_of(prompt, written)}"


def _of_loop(
    calls: Sequence[ast.Call], values: Mapping[str, Any], said: Sequence[str]
) -> Iterator[str]:
    """Yield what calls of a loop of one's own, or of Lightning's, say where nothing else did.

    ``said``: flags that are said already.
    """
    named = {word.partition("=")[0] for word in said}
    for call in calls:
        keywords = {each.arg: _constant(each.value, values) for each in call.keywords}
        precision = _OF_LIGHTNING.get(str(keywords.get("precision")))
        if _name(call) == _PLAIN_TRAINER and precision is not None:
            yield from ("--precision", precision)
            yield from (word for each in call.keywords for word in _flag(each, values))
        length = keywords.get("max_length")
        if keywords.get("truncation") and type(length) is int and named.isdisjoint(_LENGTHS):
            yield from ("--seq-len", str(length))
            named.update(_LENGTHS)
    loaders = [call for call in calls if _name(call) == _LOADER]
    loaders.sort(key=lambda call: not _is_shuffled(call))
    batches = (_batch_of(call, values) for call in loaders)
    batch = next((each for each in batches if each), 0)
    if batch and named.isdisjoint(_BATCHES):
        yield from ("--micro-batch", str(batch))


def _is_shuffled(call: ast.Call) -> bool:
    return any(each.arg == "shuffle" and _known(each.value, {}) for each in call.keywords)


def _batch_of(call: ast.Call, values: Mapping[str, Any]) -> int:
    """Return the rows of a batch of a loader; 0: its text does not say."""
    given = [each.value for each in call.keywords if each.arg == "batch_size"] or call.args[1:2]
    batch = _constant(given[0], values) if given else None
    return batch if type(batch) is int and batch > 0 else 0


def _beside(calls: Sequence[ast.Call], values: Mapping[str, Any]) -> list[str]:
    """Return what a server of the same process leaves of each card, as a limit."""
    given = {each.arg: each.value for call in calls for each in call.keywords}
    if _MODE in given and _constant(given[_MODE], values) == _APART:
        return []
    for switch, key, usual in _BESIDE:
        is_there = switch in given and _known(given[switch], values)
        share = _constant(given[key], values) if key in given else usual
        if is_there and isinstance(share, float) and 0 < share < 1:
            return ["--memory-limit", f"{1 - share:.0%}"]
    return []


def _as_trained(
    tree: ast.Module,
    calls: Sequence[tuple[str, ast.Call]],
    values: Mapping[str, Any],
    *,
    adapts: bool,
    is_written: bool,
) -> list[str]:
    """Return what else a trainer does, in our flags: its loss, and weights of 16 bits.

    ``is_written``: whether the model writes the rows itself.
    """
    every = [each for _, call in calls for each in call.keywords]
    halves = not adapts and any(_is_half(each, values) for each in every)
    words = ["--precision", "bf16"] if halves else []
    if is_written:
        return [*words, *_written(calls, values)]
    if _OWN_LOSS in ast.unparse(tree).lower() or not any(
        name.endswith(_TRAINERS) for name, _ in calls
    ):
        return words
    fuses = any(_spelt(each.arg) in _FUSES and _constant(each.value, values) for each in every)
    return [*words, *(["--fused-kernels", "liger"] if fuses else ["--loss-chunks", "1"])]


def _is_half(keyword: ast.keyword, values: Mapping[str, Any]) -> bool:
    """Whether an argument has weights loaded in bf16, which then train so."""
    flag = _spelt(keyword.arg)
    if flag == _KEYWORDS_OF_MODEL and isinstance(keyword.value, ast.Dict):
        pairs = zip(keyword.value.keys, keyword.value.values, strict=True)
        named = [(_constant(key, values), value) for key, value in pairs if key is not None]
        return any(
            _is_half(ast.keyword(name, value), values)
            for name, value in named
            if isinstance(name, str)
        )
    said = _constant(keyword.value, values) or ast.unparse(keyword.value)
    return flag in OF_WEIGHTS and HALVES.get(str(said).removeprefix("torch.")) == "bf16"


def _is_replicated(tree: ast.Module, gpus: str, given: Sequence[str]) -> bool:
    """Whether several GPUs have a whole model each: nothing says that they share one."""
    several = split_counts(gpus)
    if several.num_nodes * several.per_node == 1:
        return False
    return not _may_share(tree, given)


def _may_share(tree: ast.Module, given: Sequence[str]) -> bool:
    """Whether something that may share a model among GPUs, or keep it on the host, is named."""
    text = " ".join([*given, ast.unparse(tree)]).lower()
    return any(word in text for word in _SHARDS)


# -- what names stand for --


def _values(tree: ast.Module, given: Sequence[str]) -> dict[str, Any]:
    """Return what names are in a text: constants of its own, and arguments that it declares."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    values = {
        target.id: node.value.value
        for node in assigned
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant)
    }
    parsed = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and "parse" in _name(node.value)
        for each in node.targets
        for target in ast.walk(each)
        if isinstance(target, ast.Name)
    }
    arguments = dict(_arguments(tree, given))
    return values | {
        f"{name}.{key.lstrip('-').replace('-', '_')}": value
        for name in parsed
        for key, value in arguments.items()
    }


def _arguments(tree: ast.AST, given: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments that a text declares, each with what it is given or its default."""
    declared = list(declared_in(tree))
    every = [name for each in declared for name in each.names]
    for each in declared:
        found = find_given(given, each.names, others=every)
        value: Any = each.default
        if found is not None:
            value = found.value
            if each.is_switch:
                value = not each.default
            elif value.isdecimal():
                value = int(value)
        yield from ((name, value) for name in each.names if name.startswith("--"))


def _declared(tree: ast.AST, given: Sequence[str]) -> Iterator[str]:
    """Yield the arguments of a script that say a job's sizes, as ``--flag=value``."""
    typed = {_spelt(word.partition("=")[0].lstrip("-")) for word in given if word[:2] == "--"}
    for name, value in _arguments(tree, given):
        flag = _spelt(name.lstrip("-"))
        is_size = flag in _SIZES or (is_of_jobs(flag) and (flag not in _TRIED or flag in typed))
        if is_size and type(value) is int and value > 0:
            yield f"{flag}={value}"


# -- calls --


def _live(node: ast.AST, values: Mapping[str, Any]) -> Iterator[ast.Call]:
    """Yield the calls of a text, but for those behind a condition that is known not to hold."""
    left = [node]
    while left:
        each = left.pop()
        if isinstance(each, ast.Call):
            yield each
        children = list(ast.iter_child_nodes(each))
        if isinstance(each, ast.If) and (known := _known(each.test, values)) is not None:
            children = [*(each.body if known else each.orelse)]
        left += reversed(children)


def _known(test: ast.expr, values: Mapping[str, Any]) -> bool | None:
    """Whether a condition holds that is one name or word, or its contrary; None: it is another."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        known = _known(test.operand, values)
        return None if known is None else not known
    value = _constant(test, values)
    return None if value is None else bool(value)


def _name(node: ast.AST) -> str:
    """Return the last part of what a call calls; empty of what is no call."""
    called = getattr(node, "func", None)
    return str(getattr(called, "attr", None) or getattr(called, "id", ""))


def _model(name: str, call: ast.Call, values: Mapping[str, Any]) -> str:
    """Return the model that a call loads, where it is a known one."""
    named = [each.value for each in call.keywords if is_of_models(_spelt(each.arg))]
    found = [*(call.args[:1] if name in {_LOADS, _PLAIN_TRAINER} else []), *named]
    constants = (_constant(each, values) for each in found)
    return next((each for each in constants if _is_known(each)), "")


def _is_known(name: Any) -> bool:
    """Whether a name is a known model's, or of a folder with one; no hub is asked."""
    from brimful.models.config import load_model
    from brimful.models.names import find

    if not isinstance(name, str):
        return False
    try:
        return bool(load_model(name) if is_there(name) else find(name))
    except BrimfulError:
        return False


def _flag(keyword: ast.keyword, values: Mapping[str, Any]) -> list[str]:
    """Return an argument as a flag and its value; nothing of one that says nothing of a job.

    Nor of a negative number, by which such arguments are as if left out (``max_steps=-1``).
    """
    flag, value = _spelt(keyword.arg), _constant(keyword.value, values)
    if value is None or not is_of_jobs(flag) or (isinstance(value, int | float) and value < 0):
        return []
    if isinstance(value, list):
        return [flag, ",".join(map(str, value))]
    return [flag, str(value).lower() if isinstance(value, bool) else str(value)]


def _settings_of(
    script: str, calls: Sequence[ast.Call], values: Mapping[str, Any], given: Sequence[str]
) -> str:
    """Find the file of settings that a script is started with, or names; empty: none is there."""
    named = [
        word.partition("=")[2] or following
        for word, following in pairwise([*given, ""])
        if _spelt(word.partition("=")[0].lstrip("-")) in _SETTINGS
    ]
    named += [
        _constant(each.value, values)
        for call in calls
        for each in call.keywords
        if _spelt(each.arg) in _SETTINGS or (_name(call), each.arg) == _INITIALIZED
    ]
    for name in named:
        if not isinstance(name, str) or not name.endswith(_OF_SETTINGS):
            continue
        for path in (Path(name), Path(script).parent / name):
            if path.is_file():
                return str(path)
    return ""


def _spelt(name: str | None) -> str:
    return f"--{name.replace('_', '-')}" if name else ""


def _constant(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Return what stands there, if it is written out, or is a name for what is."""
    if isinstance(node, ast.Name | ast.Attribute):
        return values.get(ast.unparse(node))
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
