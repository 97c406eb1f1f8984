"""Weights from a checkpoint, straight into the model's own memory, in its own types.

The model is allocated first, as for random weights; each stored tensor is then read in pieces into
the memory that is there, whatever its type and device. So the host never holds a second copy: at
most ``PIECE_BYTES`` beside the model, and one full layer where it is quantised or joined of
several. What the checkpoint lacks is drawn from the seed, as ``from_pretrained`` does.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from brimful.build.adapters import base_name
from brimful.build.added_rows import draw_shares, fill_added
from brimful.build.own import keep_own, own_memory, region_of
from brimful.build.parallel.stages import ORIGINAL
from brimful.build.quantize import is_quantized
from brimful.build.weight_files import FLOATS, find_files, opened, pieces, read_whole
from brimful.build.weight_names import Joined, Matched, join, match
from brimful.errors import InputError
from brimful.text.escaping import one_line

_log = logging.getLogger(__name__)
_SHOWN = 3
LOADED = "_is_hf_initialized"
"""The mark by which ``transformers`` knows that a tensor must not be drawn anew."""


class Checkpoint(NamedTuple):
    """A checkpoint whose names fit a model, not read yet.

    Attributes:
        source: What the user called it.
        model: The model, with memory.
        files: Where each stored tensor lies.
        targets: The plain model's tensors, by name; a quantised layer stands for its weight.
        matched: Which stored tensor is which of them.
    """

    source: str
    model: nn.Module
    files: Mapping[str, Path]
    targets: Mapping[str, Any]
    matched: Matched


class LoadReport(NamedTuple):
    """What became of a checkpoint's names.

    Attributes:
        missing: Parameters that it lacks: drawn from the seed.
        unexpected: Tensors that the model has no place for: left out.
        added_rows: Rows beyond the checkpoint's, by parameter.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    added_rows: dict[str, int]


def open_checkpoint(model: nn.Module, source: str) -> Checkpoint:
    """Find the files of a checkpoint and the place of every tensor.

    ``source``: a folder, a safetensors file, or a hub id. Raises InputError: there are no such
    weights, or they are another model's.
    """
    files, targets = find_files(source), dict(_plain_tensors(model))
    checkpoint = Checkpoint(source, model, files, targets, match(model, files, targets))
    _check_names(checkpoint)
    return checkpoint


def load(checkpoint: Checkpoint) -> LoadReport:
    """Read everything but quantised weights into the model, and mark what was read.

    Returns what was not there, what was left out; said in the log as well. Raises InputError: a
    tensor does not fit, or weights that the model ties differ.
    """
    added = {}
    for name, twins in _stored_targets(checkpoint):
        target = checkpoint.targets[name]
        setattr(target, LOADED, True)
        if own_memory(target).is_meta:  # another device of the pipeline has it
            _draw_added(checkpoint, name, target)
            continue
        num_added = read_into(checkpoint, name, target)
        if num_added:
            added[name] = num_added
        for twin in twins:
            _check_equal(checkpoint, twin, target, name)
    _load_joined(checkpoint)
    report = LoadReport(tuple(_missing(checkpoint)), checkpoint.matched.unexpected, added)
    _say(checkpoint.source, report)
    return report


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def read_into(checkpoint: Checkpoint, name: str, target: torch.Tensor) -> int:
    """Read one parameter into memory, converting its type on the way.

    ``target``: where to; of the parameter's shape, or with more rows where tokens were added.
    Returns rows that were added to those of the checkpoint. Raises InputError: the shapes differ,
    or it is not stored in full precision.
    """
    stored_name = checkpoint.matched.stored[name]
    with opened(checkpoint.files[stored_name]) as tensors:
        stored = tensors.get_slice(stored_name)
        _check_type(checkpoint, stored_name, stored.get_dtype(), target)
        num_added = _num_added(checkpoint, name, stored.get_shape(), target)
        if num_added and isinstance(target, DTensor):
            whole = torch.empty(target.shape, dtype=target.dtype, device=target.device)
            _read_with_added(stored, whole, num_added)
            keep_own(target, whole)
        elif num_added:
            _read_with_added(stored, target, num_added)
        else:
            own = own_memory(target)
            for where, values in pieces(stored, region_of(target)):
                own[where].copy_(values)
    return num_added


def _draw_added(checkpoint: Checkpoint, name: str, target: torch.Tensor) -> None:
    """Draw what the other device draws for added rows, and drop it."""
    stored_name = checkpoint.matched.stored[name]
    with opened(checkpoint.files[stored_name]) as tensors:
        shape = tensors.get_slice(stored_name).get_shape()
    num_added = _num_added(checkpoint, name, shape, target)
    if num_added:
        here = next(p.device for p in checkpoint.model.parameters() if not own_memory(p).is_meta)
        draw_shares(num_added, shape[0], here)


def _read_with_added(stored: Any, target: torch.Tensor, num_added: int) -> None:
    num_old = len(target) - num_added
    for where, values in pieces(stored):
        target[where].copy_(values)
    fill_added(target, num_old=num_old)


def _plain_tensors(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield what the plain model would have, under its names there: parameters and buffers."""
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        kept = set(module._buffers) - module._non_persistent_buffers_set  # noqa: SLF001
        own = {**module._parameters, **{n: module._buffers[n] for n in kept}}  # noqa: SLF001
        if is_quantized(module):
            own = {"weight": module, "bias": own.get("bias")}
        for name, tensor in own.items():
            plain = base_name(prefix.replace(ORIGINAL, "") + name)
            if tensor is not None and plain is not None:
                yield plain, tensor


def _stored_targets(checkpoint: Checkpoint) -> Iterator[tuple[str, list[str]]]:
    """Yield each tensor that is stored as it is, with its other names where it is tied."""
    names: dict[int, list[str]] = {}
    for name in checkpoint.matched.stored:
        target = checkpoint.targets[name]
        if not isinstance(target, nn.Module):
            names.setdefault(id(target), []).append(name)
    for first, *twins in names.values():
        yield first, twins


def _load_joined(checkpoint: Checkpoint) -> None:
    def read(name: str) -> torch.Tensor:
        with opened(checkpoint.files[name]) as tensors:
            return read_whole(tensors.get_slice(name))

    for joined in checkpoint.matched.joined:
        if _is_elsewhere(checkpoint, joined):
            continue
        for name, values in join(joined, checkpoint.model, read).items():
            target = checkpoint.targets[name]
            _num_added(checkpoint, name, values.shape, target)  # none: no token's row is joined
            with torch.no_grad():
                keep_own(target, values)
            setattr(target, LOADED, True)


def _is_elsewhere(checkpoint: Checkpoint, joined: Joined) -> bool:
    """Whether another device of a pipeline has what stored tensors are joined to; mark it."""
    targets = [checkpoint.targets[name] for name in joined.targets]
    for target in targets:
        setattr(target, LOADED, True)
    return all(own_memory(target).is_meta for target in targets)


def _missing(checkpoint: Checkpoint) -> list[str]:
    targets = checkpoint.targets
    held = {id(target) for name, target in targets.items() if checkpoint.matched.holds(name)}
    return [name for name, target in targets.items() if id(target) not in held]


def _check_names(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that lacks part of the base; a task's head is no part of it."""
    kind = type(checkpoint.model).__name__
    if not checkpoint.matched.stored and not checkpoint.matched.joined:
        raise InputError(
            f"none of the {len(checkpoint.files)} tensors of {checkpoint.source} belongs to a "
            f"{kind} (which has {next(iter(checkpoint.targets))}); give weights of such a model"
        )
    lacking = [name for name in _missing(checkpoint) if _is_of_base(checkpoint, name)]
    if lacking:
        raise InputError(
            f"{checkpoint.source} lacks {_some(lacking)}, which a {kind} needs; give the whole "
            f"checkpoint, or the configuration that it was made with"
        )


def _is_of_base(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a parameter belongs to what tasks share; a pooler is trained with a task."""
    model = checkpoint.model
    prefix = getattr(model, "base_model_prefix", "")
    if prefix and hasattr(model, prefix):
        return name.startswith(f"{prefix}.") and ".pooler." not in name
    inputs, outputs = ({id(p) for p in layer.parameters()} for layer in _vocabulary(model))
    return id(checkpoint.targets[name]) not in outputs - inputs


def _vocabulary(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return the layers with a row for every token; empty ones where a model has none."""
    getters = (f"get_{which}_embeddings" for which in ("input", "output"))
    layers = (getattr(model, getter, lambda: None)() for getter in getters)
    inputs, outputs = (layer if layer is not None else nn.Module() for layer in layers)
    return inputs, outputs


def _check_type(checkpoint: Checkpoint, name: str, dtype: str, target: torch.Tensor) -> None:
    if target.is_floating_point() and dtype not in FLOATS:
        raise InputError(
            f"{name} of {checkpoint.source} is stored as {dtype}, a quantised type; give weights "
            f"in full precision ({', '.join(sorted(FLOATS))}), which Brimful quantises itself"
        )


def _num_added(
    checkpoint: Checkpoint, name: str, shape: Iterable[int], target: torch.Tensor
) -> int:
    """Count the rows of ``target`` that a stored tensor does not fill: tokens it does not know."""
    stored, own = tuple(shape), tuple(target.shape)
    if stored == own:
        return 0
    grows = stored[1:] == own[1:] and len(stored) == len(own) and stored[:1] < own[:1]
    if grows and _counts_tokens(checkpoint, name):
        return int(own[0] - stored[0])
    raise InputError(
        f"{name} is {list(stored)} in {checkpoint.source} and {list(own)} in the model; give the "
        f"model's own weights, or the configuration that they were made with"
    )


def _counts_tokens(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a parameter has a row for every token."""
    rows = [p for layer in _vocabulary(checkpoint.model) for p in layer.parameters()]
    return any(checkpoint.targets[name] is tensor for tensor in rows)


def _check_equal(checkpoint: Checkpoint, name: str, target: torch.Tensor, twin: str) -> None:
    """Refuse weights that the model ties and the checkpoint does not."""
    stored_name = checkpoint.matched.stored[name]
    with opened(checkpoint.files[stored_name]) as tensors:
        stored = tensors.get_slice(stored_name)
        num_added = _num_added(checkpoint, name, stored.get_shape(), target)
        own, region = own_memory(target), region_of(target)
        if num_added and region:
            last = stored.get_shape()[0]
            region = (slice(region[0].start, min(region[0].stop, last)), *region[1:])
        equal = all(
            torch.equal(own[where], values.to(own.device, own.dtype))
            for where, values in pieces(stored, region)
        )
    if not equal:
        raise InputError(
            f"{checkpoint.source} holds a {name} that is not its {twin}, and the model's "
            f"configuration ties the two; set tie_word_embeddings to false in it"
        )


def _say(source: str, report: LoadReport) -> None:
    if report.missing:
        _warn(f"{source} lacks {_some(report.missing)}: drawn from the seed")
    if report.unexpected:
        _warn(f"{source} holds {_some(report.unexpected)}, which is left out")
    for name, num_rows in report.added_rows.items():
        _warn(f"{name} gets {num_rows} rows that {source} has not, near the mean")


def _some(names: Iterable[str]) -> str:
    """Name a few of many."""
    listed = list(names)
    more = len(listed) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _warn(message: str) -> None:
    """Warn in one line; names of tensors are whatever a file says."""
    _log.warning("%s", one_line(message))
