"""Tensor parallelism with sequence parallelism: every matrix is cut over a group of devices.

Matrices that read the residual stream are cut by what they give (columns), those that write to it
by what they take (rows), the embedding and the output layer by tokens of the vocabulary. The
residual stream itself, and the norms on it, are cut by tokens: before a column a device gathers all
tokens, behind a row the devices' terms are added up and each keeps its own tokens.

Parameters are DTensors, so that they are drawn, read, saved, sharded again by FSDP2 and updated by
what knows DTensors. What computes are plain tensors: a layer's forward runs on this device's
pieces, so that attention kernels, autocast and checkpointing are those of one device.

Which matrix is cut how says the class's own plan (``base_model_tp_plan``); norms, embedding and
output layer are known by their kind.

Shapes: B batch, S tokens of a row, N = B x S tokens, n = N / tp, D width of a token.
Source: Shoeybi et al. 2019 (arXiv:1909.08053); Korthikanti et al. 2022 (arXiv:2205.05198).
"""

import contextlib
import re
from collections.abc import Iterator
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from brimful.build.blocks import body_of, decoder_blocks
from brimful.build.experts import expert_modules, is_router
from brimful.build.parallel.collectives import gather_features, gather_tokens, scatter_sum
from brimful.build.parallel.pieces import (
    Cut,
    Pieces,
    mark_cut,
    on_own_pieces,
    own_pieces,
    own_range,
)
from brimful.build.parallel.vocabulary import VocabularyPart, mark_part, own_rows
from brimful.errors import UnsupportedError

_WEIGHT, _BIAS = "weight", "bias"
_NUMBER = re.compile(r"\.\d+\.")
_ANY = ".*."
_STATES = "hidden_states"
"""What attention calls its input; an MLP is given it by place."""
_POSITIONS = "position_embeddings"
"""What every class here gives its attention beside it: cosines and sines, [1 or B, S, ...]."""


def tensor_parallel(model: Any, mesh: DeviceMesh) -> None:
    """Cut a decoder that has no bytes yet over the devices of a group, in place.

    ``model``: a decoder of ``transformers``, on ``meta``. Raises UnsupportedError: a layer is of no
    known kind.
    """
    parallelize_module(model, mesh, styles_of(model))
    body_of(model).register_forward_pre_hook(_number_tokens, with_kwargs=True)


def styles_of(model: Any) -> dict[str, ParallelStyle]:
    """Return how each layer is run, by its name with ``*`` for the number of its block.

    Blocks with experts may stand beside dense ones: there every layer has its own name.

    ``model``: a decoder. Experts, if it has any, are parted among devices and not cut. Raises
    UnsupportedError: a layer is of no known kind.
    """
    cut: Pieces = {}
    found: dict[str, ParallelStyle] = {}
    parted = set(expert_modules(model))
    for name, module in model.named_modules():
        if module in parted or not any(True for _ in module.parameters(recurse=False)):
            continue
        style = _style(model, name, module, cut)
        found[_alike(name, parted)] = style
        if isinstance(style, Columns):
            found[_alike(name.rpartition(".")[0], parted)] = AllTokens()
    return found


def _alike(name: str, parted: set[nn.Module]) -> str:
    """Return a pattern for the layers that stand in the same place of every block."""
    return name if parted else _NUMBER.sub(_ANY, name)


def _style(model: Any, name: str, module: nn.Module, cut: Pieces) -> ParallelStyle:
    """Return how one layer is run: by its place, by the class's plan, or by its kind."""
    if module is model.get_input_embeddings():
        return Embedding(cut)
    if module is model.get_output_embeddings():
        return Head(cut)
    if isinstance(module, nn.Linear):
        planned = _planned(model, name)
        if planned.startswith("colwise") and _is_one_matrix(model, module):
            return Columns(cut)
        if planned.startswith("rowwise"):
            return Rows(cut)
    elif is_router(model, name):
        return EachToken(cut)
    elif all(p.ndim == 1 for p in module.parameters(recurse=False)):
        return WholeHeads(cut) if _spans_heads(model, module) else EachToken(cut)
    raise UnsupportedError(
        f"{name} of {type(model).__name__} is of a kind that tensor parallelism does not cut in "
        f"this version; use tp=1"
    )


def _planned(model: Any, name: str) -> str:
    """Return how the class's own plan cuts a layer; empty where it does not say."""
    inner = name.removeprefix(f"{model.base_model_prefix}.")
    plan = model.config.base_model_tp_plan or {}
    return str(plan.get(_NUMBER.sub(_ANY, inner), ""))


def _is_one_matrix(model: Any, layer: nn.Linear) -> bool:
    """Whether a layer gives queries, keys, values or half of an MLP, and not several of them."""
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = (config.num_attention_heads, config.num_key_value_heads)
    return layer.out_features in {config.intermediate_size, *(n * width for n in heads)}


def _spans_heads(model: Any, module: nn.Module) -> bool:
    """Whether a norm runs over the features of all heads at once, as OLMo 2's of queries do."""
    block = next((b for b in decoder_blocks(model) if _holds(b, module)), None)
    if block is None or not hasattr(block, "self_attn") or not _holds(block.self_attn, module):
        return False
    width: int = module.weight.shape[0]
    return bool(width != block.self_attn.head_dim)


def _holds(outer: nn.Module, inner: nn.Module) -> bool:
    return any(module is inner for module in outer.modules())


class Columns(Cut):
    """A matrix that reads the residual stream: every device has some of what it gives."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.cut(module, device_mesh, weight=Shard(0), bias=Shard(0))
        return on_own_pieces(module, device_mesh.get_group())


class Rows(Cut):
    """A matrix that writes to it: every device has some of what it takes, and gets its tokens."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = device_mesh.get_group()
        self.cut(module, device_mesh, weight=Shard(1))
        mark_cut(module, group, _BIAS)  # which is added once, behind the sum
        inner = module.forward

        @wraps(inner)
        def forward(x: torch.Tensor) -> torch.Tensor:
            with own_pieces(module) as own:
                bias = own.get(_BIAS)
                term = inner(x)
            tokens_nD = scatter_sum(term.flatten(0, -2), group)  # noqa: N806
            return (tokens_nD if bias is None else tokens_nD + bias)[None]

        module.forward = forward
        return module


class EachToken(Cut):
    """A norm over one token's features, or over one head's, or a router: whole on every device."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.cut(module, device_mesh)
        return on_own_pieces(module, device_mesh.get_group())


class WholeHeads(Cut):
    """A norm over the features of all heads: they are gathered, and this device's are kept."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = device_mesh.get_group()
        self.cut(module, device_mesh)
        on_own_pieces(module, group)
        inner = module.forward

        @wraps(inner)
        def forward(x: torch.Tensor) -> torch.Tensor:
            width = x.shape[-1]
            whole: torch.Tensor = inner(gather_features(x, group))
            return whole.narrow(-1, device_mesh.get_local_rank() * width, width).contiguous()

        module.forward = forward
        return module


class Embedding(Cut):
    """The token embedding: every device has some of the vocabulary, and gets its tokens."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        part = _vocabulary_part(module, device_mesh)
        self.cut(module, device_mesh, weight=Shard(0))
        mark_cut(module, part.group)
        inner = module.forward

        @wraps(inner)
        def forward(ids_BS: torch.Tensor) -> torch.Tensor:  # noqa: N803
            rows, others = own_rows(ids_BS, part)
            with own_pieces(module), _own_padding(module, part):
                term_BSD = inner(rows).masked_fill_(others[..., None], 0.0)  # noqa: N806
            return scatter_sum(term_BSD.flatten(0, 1), part.group)[None]

        module.forward = forward
        return module


class Head(Cut):
    """The output layer: every device has some of the vocabulary, and computes it for all tokens."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        mark_part(module, _vocabulary_part(module, device_mesh))
        self.cut(module, device_mesh, weight=Shard(0), bias=Shard(0))
        return on_own_pieces(module, device_mesh.get_group())


class AllTokens(ParallelStyle):  # type: ignore[misc]  # torch is untyped to mypy
    """Attention or an MLP: it is given all tokens, attention in their rows."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = device_mesh.get_group()

        def gather(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
            if _STATES not in kwargs:
                return (_rows_of(args[0], kwargs, group), *args[1:]), kwargs
            return args, {**kwargs, _STATES: _rows_of(kwargs[_STATES], kwargs, group)}

        module.register_forward_pre_hook(gather, with_kwargs=True)
        return module


def _rows_of(x_1nD: torch.Tensor, kwargs: dict[str, Any], group: ProcessGroup) -> torch.Tensor:  # noqa: N803
    """Return all tokens in their rows, [B, S, D], where it matters, else in one, [1, N, D]."""
    tokens_ND = gather_tokens(x_1nD.flatten(0, 1), group)  # noqa: N806
    seq_len = kwargs[_POSITIONS][0].shape[-2] if _POSITIONS in kwargs else len(tokens_ND)
    return tokens_ND.unflatten(0, (-1, seq_len))


def _vocabulary_part(module: nn.Module, mesh: DeviceMesh) -> VocabularyPart:
    start, num_rows = own_range(module.weight.shape[0], mesh)
    return VocabularyPart(mesh.get_group(), start, num_rows)


@contextlib.contextmanager
def _own_padding(module: Any, part: VocabularyPart) -> Iterator[None]:
    """Number the token whose row gets no gradient by this device's rows, inside the block."""
    padding = module.padding_idx
    is_own = padding is not None and part.start <= padding < part.start + part.num_rows
    module.padding_idx = padding - part.start if is_own else None
    try:
        yield
    finally:
        module.padding_idx = padding


def _number_tokens(_model: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Say where tokens stand: the class would count them in its part of the residual stream."""
    if kwargs.get("position_ids") is None:
        ids_BS = kwargs["input_ids"]  # noqa: N806
        places = torch.arange(ids_BS.shape[1], device=ids_BS.device)
        kwargs = {**kwargs, "position_ids": places[None]}
    return args, kwargs
