"""Which tensor of a checkpoint goes where in a model, by the rules of ``transformers`` itself.

Old names are renamed, the prefix of the base model is added or taken off, and experts that are
stored apart are joined, as ``from_pretrained`` does (``transformers.core_model_loading``). The
helpers that are used here are private to it, so that this is the one file that knows them.
"""

import re
from collections.abc import Callable, Collection, Iterable
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import nn

_OLD_BUFFERS = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$", r"\.attn\.(masked_)?bias$")
"""Constants that old checkpoints hold and today's models compute."""


class Joined(NamedTuple):
    """Parameters that are made of several stored tensors, or several made of one.

    Attributes:
        target: The first of them, by its name in the plain model.
        targets: All of them.
        names: The stored tensors.
        patterns: The pattern by which the converter knows each of them.
        converter: What makes the ones of the others.
    """

    target: str
    targets: tuple[str, ...]
    names: tuple[str, ...]
    patterns: tuple[str, ...]
    converter: Any


class Matched(NamedTuple):
    """Which names of a checkpoint belong to a model.

    Attributes:
        stored: The stored tensor of a parameter, by the parameter's name in the plain model.
        joined: Parameters that are no single stored tensor.
        unexpected: Stored tensors that the model has no place for.
    """

    stored: dict[str, str]
    joined: tuple[Joined, ...]
    unexpected: tuple[str, ...]

    def holds(self, name: str) -> bool:
        """Whether the checkpoint has a parameter of the plain model."""
        return name in self.stored or any(name in joined.targets for joined in self.joined)


def match(model: nn.Module, names: Iterable[str], targets: Collection[str]) -> Matched:
    """Find the place of every stored tensor.

    ``model``: a ``transformers`` model; any other module's names are as they are.
    """
    if hasattr(model, "base_model_prefix"):
        return _match_renamed(model, names, targets)
    listed = list(names)
    stored = {name: name for name in listed if name in targets}
    return Matched(stored, (), tuple(name for name in listed if name not in targets))


def _match_renamed(model: nn.Module, names: Iterable[str], targets: Collection[str]) -> Matched:
    rename, converters = _renaming(model, targets)
    stored: dict[str, str] = {}
    joined: dict[str, Joined] = {}
    unexpected = []
    # Sort so that block 10 comes after block 9, as converters expect their experts.
    from transformers.core_model_loading import dot_natural_key

    for name in sorted(names, key=dot_natural_key):
        target, pattern = rename(name)
        if target not in targets:
            unexpected.append(name)
        elif pattern is None:
            stored[target] = name
        else:
            joined[target] = _joined(joined.get(target), target, converters[pattern], name, pattern)
    return Matched(stored, tuple(joined.values()), _unknown(model, unexpected))


Renaming = Callable[[str], tuple[str, str | None]]


def _renaming(model: nn.Module, targets: Collection[str]) -> tuple[Renaming, dict[str, Any]]:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    known = dict.fromkeys(targets, True)

    def rename(name: str) -> tuple[str, str | None]:
        prefix = model.base_model_prefix
        renamed: tuple[str, str | None] = rename_source_key(
            name, renamings, converters, prefix, known
        )
        if renamed[0] in known or name not in known:
            return renamed
        return name, None

    return rename, {pattern: c for c in converters for pattern in c.source_patterns}


def _joined(before: Joined | None, target: str, converter: Any, name: str, pattern: str) -> Joined:
    if before is not None:
        names, patterns = (*before.names, name), (*before.patterns, pattern)
        return before._replace(names=names, patterns=patterns)
    first, *_ = made = converter.target_patterns
    targets = tuple(target.replace(first, other) for other in made)
    return Joined(target, targets, (name,), (pattern,), deepcopy(converter))


def join(
    joined: Joined, model: nn.Module, read: Callable[[str], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Make parameters of the stored tensors that they are made of.

    Returns by their names in the plain model.
    """
    converter = deepcopy(joined.converter)
    for name, pattern in zip(joined.names, joined.patterns, strict=True):
        converter.add_tensor(joined.target, name, pattern, lambda name=name: read(name))
    made = converter.convert(joined.target, model=model, config=model.config)
    return {name: x[0] if isinstance(x, list) else x for name, x in made.items()}


def _unknown(model: nn.Module, unexpected: list[str]) -> tuple[str, ...]:
    """Leave out what the model's class expects to find and has no use for."""
    ignored = model._keys_to_ignore_on_load_unexpected or ()  # noqa: SLF001
    patterns = [*ignored, *_OLD_BUFFERS]
    return tuple(n for n in unexpected if not any(re.search(pattern, n) for pattern in patterns))
