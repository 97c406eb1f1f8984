"""The whole depth from a few blocks: what is traced shallow, and unrolled.

Where every block is run alike (none is checkpointed, or all are), a model of few blocks is traced
twice and its tape unrolled (``pretend.unroll``). Otherwise, where a tape does not repeat, where the
architecture is none of those known here, in a pipeline (whose micro-batches are unrolled instead:
``chosen.py``), where something is offloaded, and where masters are updated or gradients reduced
(DDP, ZeRO-1) in buckets, which are cut by bytes and not by blocks, the whole is traced.
"""

from collections.abc import Callable

import msgspec

from brimful.cost.recipes import RECIPES
from brimful.job import Job
from brimful.models.config import layout_of
from brimful.models.mixtures import known_experts
from brimful.models.spec import ModelSpec
from brimful.offload import NONE as NO_OFFLOAD
from brimful.pretend.blocks import NotPeriodicError, Pattern
from brimful.pretend.recording import Recording
from brimful.pretend.unroll import MIN_UNITS, unroll_blocks
from brimful.strategy import (
    Strategy,
    data_parallel,
    gathers,
    is_selective,
    num_checkpointed,
)

NUM_DEEP, NUM_SHALLOW = MIN_UNITS, 1
"""Blocks of the two models that are traced."""
_LAYERS = ("llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe")
_PREFIXED = ("deepseek_v2", "deepseek_v3")
"""Architectures whose first blocks are dense: as many in the models that are traced."""
NUM_DEEP_PREFIXED = NUM_DEEP + 2
"""Of four blocks behind dense ones no two are alike where FSDP2 shards a large mixture."""
_STACKS = {**dict.fromkeys((*_LAYERS, *_PREFIXED), "model.layers"), "gpt2": "transformer.h"}
_DEPTH_FIELDS = {**dict.fromkeys((*_LAYERS, *_PREFIXED), "num_hidden_layers"), "gpt2": "n_layer"}
"""Architectures of one stack of blocks, of one kind but for a prefix: its place, and what its depth
is called."""

Trace = Callable[[Job, Strategy], Recording]


def record_whole(job: Job, strategy: Strategy, trace: Trace) -> Recording:
    """Return the tape of the whole model, unrolled where that is possible.

    Args:
        job: What is trained.
        strategy: How it is run.
        trace: Runs a program on the pretend GPU and returns its tape.
    """
    num_blocks = job.model.num_layers
    stack = _STACKS.get(job.model.model_type)
    is_staged = strategy.pp > 1
    num_first = _num_prefix(job.model)
    num_deep = NUM_DEEP_PREFIXED if num_first else NUM_DEEP
    is_short = num_blocks <= num_first + num_deep + NUM_SHALLOW
    has_buckets = data_parallel(strategy) > 1 and not gathers(strategy)
    is_cut = bool(RECIPES[job.precision].master) or has_buckets
    is_cut = is_cut or _names_blocks(job) or strategy.offload != NO_OFFLOAD
    if is_staged or is_short or is_cut or not _is_alike(strategy, num_blocks):
        return trace(job, strategy)
    if stack is None or not _is_uniform(job.model):
        return trace(job, strategy)
    spelled = _of_any_depth(strategy, num_blocks)
    few = msgspec.structs.replace(strategy, activation_checkpointing=spelled)
    pattern = Pattern(stack=stack, num_prefix=num_first, period=1)
    deep, shallow = (trace(_with_depth(job, num_first + n), few) for n in (num_deep, NUM_SHALLOW))
    try:
        return unroll_blocks(deep, shallow=shallow, pattern=pattern, num_blocks=num_blocks)
    except NotPeriodicError:
        return trace(job, strategy)


def _is_uniform(model: ModelSpec) -> bool:
    """Whether every block is of one kind: of the same parameters, and attending as far.

    The dense blocks before a mixture's others are left out.
    """
    differs = ("layer_types", "use_sliding_window")
    num_kinds = len(layout_of(model).blocks) - (_num_prefix(model) > 0)
    return num_kinds == 1 and not any(map(model.hf_config.get, differs))


def _num_prefix(model: ModelSpec) -> int:
    """Count the dense blocks before the first that has experts; 0 in a model without any."""
    if model.model_type not in _PREFIXED:
        return 0
    sparse = known_experts(model).sparse_blocks
    return sparse[0] if sparse else 0


def _is_alike(strategy: Strategy, num_blocks: int) -> bool:
    """Whether every block is run in the same way."""
    return num_checkpointed(strategy, num_layers=num_blocks) in {0, num_blocks}


def _names_blocks(job: Job) -> bool:
    """Whether a module is kept in fp32 that has a number in its path, so that blocks differ."""
    return any(part.isdigit() for name in job.keep_fp32 for part in name.split("."))


def _of_any_depth(strategy: Strategy, num_blocks: int) -> str:
    """Spell the checkpointing of blocks that are run alike without saying how many there are."""
    if num_checkpointed(strategy, num_layers=num_blocks) == 0:
        return "none"
    return "selective" if is_selective(strategy) else "full"


def _with_depth(job: Job, num_blocks: int) -> Job:
    """Return the job of a model with fewer blocks, in the description and in the configuration."""
    model = job.model
    config = {**model.hf_config, _DEPTH_FIELDS[model.model_type]: num_blocks}
    return msgspec.structs.replace(
        job, model=msgspec.structs.replace(model, num_layers=num_blocks, hf_config=config)
    )
