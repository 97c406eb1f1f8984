"""Command lines of Megatron-DeepSpeed, and of older Megatron-LMs, in the words of Megatron-LM.

What ZeRO parts among replicas is read as Megatron's own distributed optimizer: DeepSpeed
has copies and buckets of its own, which a note says. In bf16 masters and states are parted by stage
0 too, beside whole gradients in fp32 (``BF16_Optimizer`` of ``deepspeed/runtime``).

Source: ``megatron/arguments.py`` of bigscience-workshop/Megatron-DeepSpeed and of
microsoft/Megatron-DeepSpeed (``--checkpoint-activations``, ``--zero-stage``, whose default is 1,
``--pad-vocab-size-to``, ``--position-embedding-type alibi``, ``--pp-partition-method``).
"""

from collections.abc import Iterator

from brimful.errors import InputError, UnsupportedError
from brimful.megatron.layout import KEEPS_NARROW
from brimful.megatron.pipeline import LAYOUT
from brimful.models.fields import MAX_DEPTH
from brimful.programs.base import Flags

Given = tuple[str, tuple[str, ...]]
SWITCH = "--deepspeed"
"""What says that a command line is Megatron-DeepSpeed's."""
_STAGES, _PARTED = ("0", "1", "2", "3"), "3"
"""The stage that parts parameters."""
_METHOD, _BY_LAYERS, _BOTH_ENDS = (
    "--pp-partition-method", "type:transformer", "type:transformer|embedding",
)  # fmt: skip
_LAYER = "t"
"""Of a layout of Megatron's."""
_ALIBI = ("--position-embedding-type", ("alibi",))
_FLASH = "--use-flash-attn"
"""Also with a version behind it."""
FLASH_NOTE = (
    "layers with flash attention are read as Transformer Engine's, the nearest with a formula"
)
NOTE = (
    "DeepSpeed's ZeRO is read as Megatron's distributed optimizer: its own copies and buckets are "
    "not counted"
)


def in_words_of_megatron(flags: Flags) -> tuple[Flags, tuple[str, ...]]:
    """Return a command line without what Megatron-LM lacks, and what that takes for granted."""
    values = [each for given in flags.values for each in _said(given, flags)]
    if not flags.has(SWITCH):
        return Flags(tuple(values)), ()
    stage = flags.text("--zero-stage").removesuffix(".0") or "1"
    if stage not in _STAGES:
        raise InputError(f"--zero-stage {stage[:40]} is no stage of ZeRO; use 0, 1 or 2")
    if stage == _PARTED:
        raise UnsupportedError(
            "--zero-stage 3 of Megatron-DeepSpeed has no formula; take 0, 1 or 2, or describe the "
            "model to brimful estimate --engine deepspeed --zero 3"
        )
    shards = stage != "0" or flags.has("--bf16")  # DeepSpeed's BF16_Optimizer does in any case
    if shards:
        values.append(("--use-distributed-optimizer", ()))
    values += _uneven(flags)
    if stage == "0" and shards:
        values.append((KEEPS_NARROW, ()))
    notes: tuple[str, ...] = (NOTE,) if shards else ()
    if any(name.startswith(_FLASH) for name, _ in flags.values):
        notes += (FLASH_NOTE,)
    elif not flags.has("--transformer-impl"):
        values.append(("--transformer-impl", ("local",)))
    return Flags(tuple(values)), notes


def _uneven(flags: Flags) -> Iterator[Given]:
    """Yield a layout where layers do not divide over stages: the first hold one more.

    Source: ``partition_balanced`` of ``deepspeed/runtime/utils.py`` 0.17, of layers of one weight;
    before 0.12 the last stage had all that the others, as full as they may be, left over.
    """
    num_layers = flags.first("--num-layers", default=1)
    pp = flags.first("--pipeline-model-parallel-size", default=1)
    is_by_layers = flags.text(_METHOD) in {"", _BY_LAYERS}
    if is_by_layers and not flags.has(LAYOUT) and 1 < pp < num_layers <= MAX_DEPTH:
        each, more = divmod(num_layers, pp)
        stages = [_LAYER * (each + (place < more)) for place in range(pp)]
        yield from [(LAYOUT, (f"E{'|'.join(stages)}L",))] * bool(more)


def _said(given: Given, flags: Flags) -> Iterator[Given]:
    """Yield what a flag is in Megatron-LM's words: mostly itself."""
    name, values = given
    if name.startswith(_FLASH):
        yield _FLASH, ()
    elif name == "--checkpoint-activations":
        num = str(flags.first("--checkpoint-num-layers", default=1))
        yield "--recompute-granularity", ("full",)
        yield "--recompute-method", ("uniform",)
        yield "--recompute-num-layers", (num,)
    elif name == "--pad-vocab-size-to":
        yield "--padded-vocab-size", (str(flags.first(name, default=1)),)
    elif (name, " ".join(values)) == (_METHOD, _BOTH_ENDS):
        yield "--account-for-embedding-in-pipeline-split", ()
        yield "--account-for-loss-in-pipeline-split", ()
    elif given == _ALIBI:  # a bias of scores, and no parameter
        yield "--position-embedding-type", ("none",)
    elif not name.startswith(("--deepspeed", "--zero-", "--checkpoint-num-", "--checkpoint-in-")):
        yield given
