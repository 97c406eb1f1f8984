"""How torchtitan spread the decoder over GPUs, as it was at several dates.

Owns the order tensor parallel, activation checkpointing, FSDP2, and the ways in which FSDP2 itself
has changed since. Knows nothing of published runs.

Source: the public history of ``torchtitan/parallelisms/parallelize_llama.py`` and of
``torch/distributed/_composable/fsdp``.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import msgspec
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as param_group
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

NONE, FULL, PER_OP, PER_LAYER = "none", "full", "selective-op", "selective-layer"


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the engine worked at the time.

    Attributes:
        separate_ends: Whether the embedding, and last norm with head, are units of their own; if
            not they belong to the root, and the last block is not resharded after its forward.
        root_resharded: Whether the root follows its flag; before June 2025 it stayed gathered.
        copy_in_aside: Whether gradients are copied into the reduce-scatter's input on the
            reduce-scatter's stream, as before July 2024.
        keeps_reduce_scatter: Whether per-op checkpointing finds the reduce-scatter of tensor
            parallelism among the operations it keeps.
    """

    separate_ends: bool
    root_resharded: bool
    copy_in_aside: bool
    keeps_reduce_scatter: bool


# -- tensor parallelism --


def tensor_parallel(model: Any, mesh: Any) -> None:
    """Split heads, feed-forward and vocabulary; keep norms split by tokens."""
    rows = 0 if model.program.folded else 1
    ends = {
        "tok_embeddings": RowwiseParallel(
            input_layouts=Replicate(),
            output_layouts=Replicate() if model.program.folded else Shard(1),
        ),
        "norm": SequenceParallel(sequence_dim=rows),
        "output": ColwiseParallel(
            input_layouts=Shard(rows), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    if model.program.folded:
        ends["layers.0"] = PrepareModuleInput(
            input_layouts=(Replicate(), None),
            desired_input_layouts=(Shard(0), None),
            use_local_output=True,
        )
    parallelize_module(model, mesh, ends)
    for block in model.layers.values():
        parallelize_module(block, mesh, _block_plan(rows, qk_norm=model.dims.qk_norm))


def _block_plan(rows: int, *, qk_norm: bool) -> dict[str, Any]:
    split, whole = Shard(rows), Replicate()
    plan = {
        "attention_norm": SequenceParallel(sequence_dim=rows),
        "attention": PrepareModuleInput(
            input_layouts=(split, None), desired_input_layouts=(whole, None)
        ),
        "attention.wq": ColwiseParallel(use_local_output=not qk_norm),
        "attention.wk": ColwiseParallel(use_local_output=not qk_norm),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=split),
        "ffn_norm": SequenceParallel(sequence_dim=rows),
        "feed_forward": PrepareModuleInput(input_layouts=(split,), desired_input_layouts=(whole,)),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=split),
        "feed_forward.w3": ColwiseParallel(),
    }
    if qk_norm:
        heads = SequenceParallel(sequence_dim=2, use_local_output=True)
        plan |= {"attention.q_norm": heads, "attention.k_norm": heads}
    return plan


# -- activation checkpointing --


def checkpoint(model: Any, mode: str, engine: Engine) -> None:
    """Wrap blocks in activation checkpointing.

    Args:
        model: The decoder.
        mode: ``none``, ``full``, ``selective-op`` or ``selective-layer:N`` (every N-th block).
        engine: How the engine worked.
    """
    every = int(mode.rpartition(":")[2]) if mode.startswith(PER_LAYER) else 1
    if mode == NONE:
        return
    keep = {"context_fn": partial(_keep_some, engine)} if mode == PER_OP else {}
    for place, (name, block) in enumerate(list(model.layers.items()), start=1):
        if place % every == 0:
            wrapped = checkpoint_wrapper(block, preserve_rng_state=False, **keep)
            model.layers.register_module(name, wrapped)


def _keep_some(engine: Engine) -> Any:
    """Keep attention's output and every second matrix product."""
    aten, comms = torch.ops.aten, torch.ops._c10d_functional  # noqa: SLF001
    kept = {
        aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
        aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001
    }
    if engine.keeps_reduce_scatter:
        kept.add(comms.reduce_scatter_tensor.default)
    num_products: dict[bool, int] = defaultdict(int)

    def policy(ctx: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if op is aten.mm.default:
            num_products[ctx.is_recompute] += 1
            save = num_products[ctx.is_recompute] % 2 == 1
        else:
            save = op in kept
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


# -- fully sharded data parallelism --


def shard(model: Any, mesh: Any, engine: Engine) -> None:
    """Shard every block, and what is left, over the data-parallel axis."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    wrap = partial(fully_shard, mesh=mesh, mp_policy=policy)
    if engine.separate_ends:
        wrap(model.tok_embeddings, reshard_after_forward=True)
    blocks = list(model.layers.values())
    for block in blocks:
        wrap(block, reshard_after_forward=engine.separate_ends or block is not blocks[-1])
    if engine.separate_ends:
        wrap([model.norm, model.output], reshard_after_forward=False)
        wrap(model)
    else:
        wrap(model, reshard_after_forward=True if engine.root_resharded else None)


@contextlib.contextmanager
def as_it_was(engine: Engine) -> Iterator[None]:
    """Let FSDP2 work as it did at the time."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_offsets_outside_the_fake_mode())
        if engine.copy_in_aside:
            stack.enter_context(mock.patch.object(param_group, "foreach_reduce", _reduce_aside))
        yield


@contextlib.contextmanager
def _offsets_outside_the_fake_mode() -> Iterator[None]:
    """Let DTensor find out which rows of a doubly split parameter are ours: it counts tensors."""
    original = _StridedShard.local_shard_size_and_offset

    def find(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return original(*args, **kwargs)

    with mock.patch.object(_StridedShard, "local_shard_size_and_offset", find):
        yield


def _reduce_aside(*args: Any, **kwargs: Any) -> Any:
    """Reduce gradients wholly on the reduce-scatter's stream, its input freed at once."""
    fsdp_params, _grads, _group, stream = args[:4]
    handle = collectives._get_device_handle(fsdp_params[0].device.type)  # noqa: SLF001
    with handle.stream(stream):
        out = collectives.foreach_reduce(*args, **kwargs)
    return None, *out[1:]
