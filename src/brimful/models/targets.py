"""Which linear layers of a model an adapter can be beside, by the names that people give them.

Recipes name the layers of Llama (``q_proj``, ``gate_proj``) whatever model they are for. Where a
model has no such layer, what it has in its place is named: a layer that holds it with others
(``qkv_proj``), another spelling (``query``), or nothing, where experts are stacks of matrices.
"""

from brimful.errors import UnknownNameError, UnsupportedError, unknown_name
from brimful.models.config import layout_of
from brimful.models.layout import adaptable, all_parameters
from brimful.models.module_paths import ends_in, names_block
from brimful.models.spec import ModelSpec
from brimful.values.job import ALL_LINEAR

LINEAR = frozenset({"linear", "own-linear", "conv1d"})
"""Kinds of parameters that are the weight of a linear layer."""
PACKED = LINEAR - {"own-linear"}
"""Those of them that a quantised base packs."""
WITH_STATE_SPACES = frozenset({"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"})
_PASSED_BY = frozenset({"out_proj", "conv1d"})
_NAMES = {
    "q": ("q", "q_proj", "q_lin", "query", "wq"),
    "k": ("k", "k_proj", "k_lin", "key", "wk"),
    "v": ("v", "v_proj", "v_lin", "value", "wv"),
    "o": ("o", "o_proj", "out_proj", "out_lin", "attn.c_proj", "attention.output.dense", "Wo"),
    "gate": ("gate_proj", "w1", "wi_0"),
    "up": ("up_proj", "w3", "wi_1", "fc1", "lin1", "wi", "c_fc", "dense_h_to_4h", "fc_in"),
    "down": ("down_proj", "w2", "fc2", "lin2", "wo", "mlp.c_proj", "dense_4h_to_h", "fc_out"),
    "q k v": ("qkv_proj", "c_attn", "query_key_value", "Wqkv", "qkv", "in_proj"),
    "q v": ("q_a_proj", "q_b_proj"),
    "k v": ("kv_a_proj_with_mqa", "kv_b_proj"),
    "gate up": ("gate_up_proj", "Wi"),
}
"""What the layers of these names hold, in the words of Llama's; of a low-rank pair both parts."""


def check_targets(spec: ModelSpec, targets: tuple[str, ...]) -> None:
    """Refuse a target that no linear layer of a model's blocks answers to.

    A model whose parameters are known only once it is built passes.

    ``targets``: ends of the paths of modules, as PEFT matches them; ``all-linear``: every one.
    """
    try:
        layout = layout_of(spec)
    except UnsupportedError:
        return
    every = [parameter for some, _ in adaptable(layout) for parameter in some]
    layers = list(dict.fromkeys(p.name for p in every if p.kind in LINEAR))
    lost = [each for each in targets if not any(is_target(name, (each,)) for name in layers)]
    if any(map(names_block, lost)):
        paths = [p.name for p in all_parameters(layout) if p.kind in LINEAR]
        lost = [each for each in lost if not any(is_target(path, (each,)) for path in paths)]
    if not lost:
        return
    near = [_last(name) for name in layers if any(_held(name) & _held(each) for each in lost)]
    stacked = {_last(p.name) for p in every if p.kind == "experts"}
    instead = list(dict.fromkeys([*(each for each in targets if each not in lost), *near]))
    names = sorted({_last(name) for name in layers} | {ALL_LINEAR})
    known = f"(the linear layers of {spec.name} are {', '.join(names)})"
    if not instead:
        raise unknown_name("adapter target", lost[0], names, more=known)
    in_place = f", but {' and '.join(dict.fromkeys(near))} in their place" if near else ""
    of_experts = any(_held(each) & _held(name) for each in lost for name in stacked)
    why = ": its experts are stacks of matrices, beside which no adapter runs" * of_experts
    raise UnknownNameError(
        f"{spec.name} has no linear layer {', '.join(lost)}{in_place}{why}; use "
        f"{','.join(instead)} {known}",
        nearest={"lora_targets": ",".join(instead)},
    )


def are_all_linear(spec: ModelSpec, targets: tuple[str, ...]) -> bool:
    """Whether targets name every linear layer of a model's blocks and nothing else, one by one.

    ``spec``: the model; of one without a layout nobody knows. ``targets``: as for
    ``check_targets``.
    """
    try:
        layout = layout_of(spec)
    except UnsupportedError:
        return False
    linear = [p.name for some, _ in adaptable(layout) for p in some if p.kind in LINEAR]
    blocks = {p.name for some, _ in adaptable(layout) for p in some}
    beside = [p.name for p in all_parameters(layout) if not p.name.endswith(tuple(blocks))]
    return (
        bool(linear)
        and ALL_LINEAR not in targets
        and all(is_target(name, targets) for name in linear)
        and all(any(is_target(name, (each,)) for name in linear) for each in targets)
        and not any(is_target(name, targets) for name in beside)
    )


def takes_adapters(model_type: str, name: str) -> bool:
    """Whether PEFT puts adapters beside a linear layer of a class.

    Fused kernels of state spaces read that layer's weight themselves and pass an adapter by.

    Source: ``_check_lora_target_modules_mamba`` in PEFT's ``tuners/tuners_utils.py``; a test

    compares them.
    """
    return model_type not in WITH_STATE_SPACES or _last(name) not in _PASSED_BY


def is_target(name: str, targets: tuple[str, ...]) -> bool:
    """Whether a linear layer of a block is among the targets.

    ``name``: of its weight, within the block or in full: ``self_attn.q_proj.weight``. ``targets``:
    as for ``check_targets``.
    """
    return ALL_LINEAR in targets or ends_in(name.removesuffix(".weight"), targets)


def _last(name: str) -> str:
    return name.removesuffix(".weight").rpartition(".")[2]


def _held(name: str) -> set[str]:
    """Return what a layer of some name holds, in Llama's words; nothing of an unknown one."""
    path = name.removesuffix(".weight")
    return {part for held, names in _NAMES.items() for part in held.split() if ends_in(path, names)}
