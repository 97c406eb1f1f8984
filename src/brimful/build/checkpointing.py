"""Activation checkpointing of the first K decoder blocks, by the model class's own switch.

``full`` recomputes the whole block. ``selective`` keeps what is dear to compute, the results of
matrix products and of attention's kernel, and recomputes norms, activations, rotary positions and
casts. Batched products are recomputed: where attention is written out they are its scores, which
grow with the square of the sequence. ``alternate`` keeps every second product of these, the first
of a block among them.

Source of the last: ``_get_custom_policy`` of torchtitan's ``distributed/activation_checkpoint.py``.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from brimful.build.attention import KERNELS
from brimful.build.blocks import decoder_blocks, parts_again, runs_as_one
from brimful.techniques.dropout import drops
from brimful.values.job import Job
from brimful.values.strategy import Recompute, Strategy, num_checkpointed, recompute_of

PRODUCTS = frozenset({torch.ops.aten.mm.default, torch.ops.aten.addmm.default})
KEPT = PRODUCTS | frozenset(KERNELS)
"""Operators whose results selective checkpointing keeps, as dispatched."""
QUANTIZED = frozenset({
    "bitsandbytes::gemm_4bit", "bitsandbytes::int8_scaled_mm", "bitsandbytes::int8_mixed_scaled_mm",
})  # fmt: skip
"""Products with a quantised weight, by name: the package is there only where it is needed."""
SAC_IGNORED_OPS.update((
    torch.ops.profiler._record_function_enter_new.default,  # noqa: SLF001 - it has no other name
    torch.ops.profiler._record_function_exit._RecordFunction,  # noqa: SLF001
))  # fmt: skip
"""Names for a profiler are no results: FSDP2's units inside of a block say others of them when it
runs again."""


def checkpoint_blocks(model: nn.Module, job: Job, strategy: Strategy) -> None:
    """Recompute the activations of the first blocks in the backward pass.

    Non-reentrant checkpoints keep saved-tensor hooks and module hooks in order. The generators'
    states are kept where something is dropped, so that the same is dropped again.

    ``model``: a ``transformers`` model. ``strategy``: says how many blocks, from the first on, and
    whether they keep dear results. Of a body that is one unit it is all that its class recomputes,
    or nothing.
    """
    num_blocks = num_checkpointed(strategy, num_layers=job.model.num_layers)
    keeping = _KEEPING.get(recompute_of(strategy))
    kept = {} if keeping is None else {"context_fn": keeping}
    blocks = decoder_blocks(model)[:num_blocks]
    if num_blocks and runs_as_one(model):
        blocks = parts_again(model)
    for block in blocks:
        block.gradient_checkpointing = True
        block._gradient_checkpointing_func = partial(  # noqa: SLF001 - the class's own switch
            checkpoint, use_reentrant=False, preserve_rng_state=drops(job), **kept
        )


def _keeping_dear_results() -> Any:
    return create_selective_checkpoint_contexts(_policy)


def _keeping_every_second_product() -> Any:
    counts: Counter[bool] = Counter()

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if _is_product(operator):
            counts[context.is_recompute] += 1
            if counts[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return _policy(context, operator, *args, **kwargs)

    return create_selective_checkpoint_contexts(policy)


_KEEPING: Mapping[Recompute, Callable[[], Any]] = {
    "selective": _keeping_dear_results,
    "alternate": _keeping_every_second_product,
}
"""What makes the two contexts of a block whose checkpoint keeps some results."""


def _policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    kept = operator in KEPT or _is_product(operator)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _is_product(operator: Any) -> bool:
    return operator in PRODUCTS or operator.name() in QUANTIZED
