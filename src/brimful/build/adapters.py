"""Adapters beside a frozen base: which layers get one, in which types everything is held.

PEFT makes the adapters, under PEFT's names; a model keeps its own class. Everything happens on
``meta``; ``initialize`` gives the adapters their first values once the model has memory.

Types. The frozen base: what ``adapter.base`` says; where it is quantised, what is left of it in the
type the recipe computes in. Adapters: the recipe's own, or fp32. ``trained_modules``: as the
adapters where autocast joins types, else as the base, which feeds them. What ``adapter.upcast``
names of the base is fp32, and so are activations then: it needs autocast, or a base in 4 bits,
whose layers take an input of any type, and ``all`` of the rest.
"""

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, cast

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from brimful.build.blocks import idle_parameters
from brimful.build.experts import targets_as_named
from brimful.build.own import whole
from brimful.build.precision import COMPUTE_DTYPE, PARAMETER_DTYPE
from brimful.build.quantize import dequantize, full_shape, is_quantized, swap
from brimful.errors import InputError, UnsupportedError, unknown_name
from brimful.models.module_paths import ends_in, lies_in
from brimful.process.quick_imports import quick_imports
from brimful.values.job import ALL_LINEAR, QUANTIZED, Adapter, Base, Job, Task

NAME = "default"
"""What PEFT calls an adapter that nobody named."""
_TAKES_ANY: frozenset[Base] = frozenset({"nf4", "nf4-double"})
"""Bases whose layers take an input of any type and give a result of that type: ``forward`` of
``bitsandbytes.nn.Linear4bit``."""
_ROWS = 3
_OURS = "_reads_packed"
_REFUSES = "_check_lora_target_modules_mamba"
_NAMED = {"bf16": torch.bfloat16, "fp16": torch.float16}
TASK_TYPE: dict[Task, str | None] = {
    "causal-lm": "CAUSAL_LM",
    "chat": "CAUSAL_LM",
    "dpo": "CAUSAL_LM",
    "sequence-classification": "SEQ_CLS",
    "masked-lm": None,
    "seq2seq": "SEQ_2_SEQ_LM",
    "module": None,
}
"""What PEFT calls each task in ``adapter_config.json``."""


def base_dtype(job: Job) -> torch.dtype:
    """Return the type that the base, or what of it is not quantised, is held in."""
    own = PARAMETER_DTYPE[job.precision]
    if job.adapter is None or job.adapter.base == "same":
        return own
    return _NAMED.get(job.adapter.base) or COMPUTE_DTYPE.get(job.precision, own)


def adapter_dtype(job: Job) -> torch.dtype:
    """Return the type that the adapters are held in; the recipe's own for a job without any."""
    if job.adapter is not None and job.adapter.dtype == "fp32":
        return torch.float32
    return PARAMETER_DTYPE[job.precision]


def adapt(skeleton: nn.Module, job: Job) -> nn.Module:
    """Freeze a base, quantise what is to be, and put adapters beside its layers, in place.

    ``skeleton``: on ``meta``, in ``base_dtype(job)``. ``job``: says which adapters; one of method
    ``full`` leaves the skeleton as it is, adapters without targets are the frozen base alone.
    Returns the same module; only what trains requires gradients. Raises InputError: a target names
    no linear layer, a trained module no module, or the precision cannot join the types that are
    asked for. Raises UnsupportedError: PEFT, or the package of a quantised base, is not installed.
    """
    adapter = job.adapter
    if adapter is None:
        return skeleton
    try:
        with quick_imports():
            import peft  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            "adapters are PEFT's, which is not installed; pip install 'peft>=0.21', or use "
            "method=full"
        ) from error
    joins = job.precision in COMPUTE_DTYPE or base_dtype(job) == torch.float32
    joins |= adapter.upcast == "all" and adapter.base in _TAKES_ANY
    if adapter.upcast != "none" and not joins:
        raise InputError(
            f"upcast={adapter.upcast} makes activations fp32, which precision={job.precision} "
            f"cannot multiply with a {base_dtype(job)} base; use bf16-mixed or fp16-mixed, or "
            f"upcast=none"
        )
    targets = _targets(skeleton, adapter)
    _check_trained(skeleton, adapter)
    if adapter.base in QUANTIZED:
        _quantize(skeleton, job, adapter)
        if job.method == "dora":
            _read_packed()
    if targets:
        _inject(skeleton, job, adapter, targets)
    _set_types(skeleton, job, adapter)
    if adapter.input_requires_grad:
        _let_inputs_require_grad(skeleton)
    return skeleton


def _targets(model: nn.Module, adapter: Adapter) -> list[str]:
    """List the paths of the layers that get an adapter."""
    idle = {name.rpartition(".")[0] for name in idle_parameters(model)}
    plain = {name for name, module in model.named_modules() if is_plain(module)}
    linear = [name for name, _ in model.named_modules() if name in plain - idle]
    heads = paths_of(model, output_layers(model))
    candidates = [n for n in linear if n not in heads and not ends_in(n, adapter.trained_modules)]
    if ALL_LINEAR in adapter.targets:
        return [name for name in candidates if _may_adapt(model, name)]
    for target in adapter.targets:
        if not any(ends_in(name, (target,)) for name in candidates):
            known = {name.rpartition(".")[2] for name in candidates} | {ALL_LINEAR}
            more = f"(the linear layers of this model are {', '.join(sorted(known))})"
            raise unknown_name("adapter target", target, known, more=more)
    return [name for name in candidates if ends_in(name, adapter.targets)]


def is_plain(module: nn.Module) -> bool:
    """Whether a module is a linear layer and nothing more, as routers and grouped layers are not.

    ``module``: on ``meta``; one that computes otherwise than its base class is tried.
    """
    if not isinstance(module, nn.Linear | Conv1D):
        return False
    if type(module).forward in {nn.Linear.forward, Conv1D.forward}:
        return True
    rows = torch.empty((_ROWS, module.in_features), dtype=module.weight.dtype, device="meta")
    try:
        out = module(rows)
    except Exception:  # noqa: BLE001 - whatever it says, it wants something else
        return False
    return isinstance(out, torch.Tensor) and out.shape == (_ROWS, module.out_features)


def _may_adapt(model: nn.Module, name: str) -> bool:
    """Whether PEFT puts an adapter there: of recurrences that compute by a layer's weight not."""
    from peft import LoraConfig
    from peft.tuners import tuners_utils

    check = getattr(tuners_utils, _REFUSES, None)  # none in older versions
    try:
        if check is not None:
            check(LoraConfig(), model, name.rpartition(".")[2])
    except ValueError:
        return False
    return True


def output_layers(model: nn.Module) -> list[nn.Module]:
    """List the layers that turn states into outputs; by its place where the class has no word."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1:] if head is None else []
    return [head] if head is not None else last


def paths_of(model: nn.Module, chosen: list[nn.Module]) -> set[str]:
    """Return under which paths a model holds some modules."""
    return {name for name, m in model.named_modules() if any(m is one for one in chosen)}


def _check_trained(model: nn.Module, adapter: Adapter) -> None:
    names = [name for name, _ in model.named_modules() if name]
    for trained in adapter.trained_modules:
        if not any(ends_in(name, (trained,)) for name in names):
            known = {last for name in names if not (last := name.rpartition(".")[2]).isdigit()}
            raise unknown_name("trained module", trained, known)


def _quantize(model: nn.Module, job: Job, adapter: Adapter) -> None:
    """Swap every linear layer but those that transformers leaves whole too.

    Source: ``get_keys_to_not_convert`` of ``transformers/quantizers/base.py``.
    """
    heads = paths_of(model, output_layers(model))
    idle = {name.rpartition(".")[0] for name in idle_parameters(model)}
    whole = {*heads, *_tied(model), _last(model), *idle}

    modules = dict(model.named_modules())

    def keeps(name: str) -> bool:
        return (
            name in whole or not is_plain(modules[name]) or lies_in(name, adapter.trained_modules)
        )

    swap(model, adapter.base, dtype=base_dtype(job), keeps=keeps)
    # By these PEFT knows that a layer is bitsandbytes'.
    model.is_loaded_in_4bit = adapter.base in {"nf4", "nf4-double"}
    model.is_loaded_in_8bit = adapter.base == "llm-int8"


def _tied(model: nn.Module) -> set[str]:
    keys: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    return {key.removesuffix(".weight") for pair in keys.items() for key in pair}


def _last(model: nn.Module) -> str:
    *_, last = (name for name, _ in model.named_parameters())
    return str(last).rpartition(".")[0]


def _inject(model: nn.Module, job: Job, adapter: Adapter, targets: list[str]) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    modules = dict(model.named_modules())
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=cast("int", adapter.alpha),  # declared so; a float is as good
        target_modules=_shortest(targets, modules),
        modules_to_save=list(adapter.trained_modules) or None,
        use_dora=job.method == "dora",
        fan_in_fan_out=any(isinstance(modules[name], Conv1D) for name in targets),
        task_type=TASK_TYPE[job.task],
    )
    try:
        with targets_as_named():
            inject_adapter_in_model(config, model, adapter_name=NAME, low_cpu_mem_usage=True)
    except ValueError as error:
        raise UnsupportedError(f"PEFT adapts {job.model.name} otherwise: {error}") from error
    for name, module in model.named_modules():
        if is_adapter(name) or ".modules_to_save" in name:
            # Theirs come from ``initialize``, after the base's, which are then those of any method.
            module._is_hf_initialized = True  # noqa: SLF001 - transformers' own mark


def _read_packed() -> None:
    """Have DoRA read layers in 4 bits as they are held here: in plain parameters.

    PEFT knows bitsandbytes' class of parameters, copies a layer before it measures it (for FSDP),
    and dequantises the weight in every forward, as here. For good: a forward asks for it too.

    Source: ``DoraLinearLayer`` of ``peft/tuners/lora/dora.py`` (0.21).
    """
    dora: Any = import_module("peft.tuners.lora.dora")
    theirs, copies = dora.dequantize_module_weight, dora.deepcopy
    if getattr(theirs, _OURS, False):
        return

    def whole_weight(layer: Any) -> torch.Tensor:
        if not is_quantized(layer):
            return cast("torch.Tensor", theirs(layer))
        if layer.weight.is_meta:  # which nothing has filled yet
            return torch.empty(full_shape(layer), dtype=layer.compute_dtype, device="meta")
        return dequantize(layer)

    setattr(whole_weight, _OURS, True)
    dora.dequantize_module_weight = whole_weight
    dora.deepcopy = lambda layer: layer if is_quantized(layer) else copies(layer)


def _shortest(targets: list[str], modules: Iterable[str]) -> list[str]:
    """Spell targets by their last parts where these name no other module: ``q_proj``."""
    last = sorted({name.rpartition(".")[2] for name in targets})
    return last if {name for name in modules if ends_in(name, last)} == set(targets) else targets


def _set_types(model: nn.Module, job: Job, adapter: Adapter) -> None:
    """Give every parameter on ``meta`` its type; biases of quantised layers keep theirs."""
    autocast = job.precision in COMPUTE_DTYPE
    for name, module in model.named_modules():
        if ".modules_to_save" in name:
            dtype = adapter_dtype(job) if autocast else base_dtype(job)
        elif is_adapter(name):
            dtype = adapter_dtype(job)
        elif not is_quantized(module) and _is_upcast(module, adapter):
            dtype = torch.float32
        else:
            continue
        _cast(module, dtype)


def is_adapter(name: str) -> bool:
    """Whether a path leads into what PEFT puts beside a layer."""
    return ".lora_" in name


def _is_upcast(module: nn.Module, adapter: Adapter) -> bool:
    is_norm = "norm" in type(module).__name__.lower()
    return adapter.upcast == "all" or (adapter.upcast == "norms" and is_norm)


def _cast(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast a module's own parameters on ``meta``; a parameter that is shared stays shared."""
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.to(dtype)


def _let_inputs_require_grad(model: nn.Module) -> None:
    if not hasattr(model, "enable_input_require_grads"):
        raise InputError(
            "input_requires_grad needs a model that knows its embedding, and this one's class "
            "does not; leave it off, as checkpointing here does not need it"
        )
    model.enable_input_require_grads()


def base_name(name: str) -> str | None:
    """Return what a parameter of an adapted model is called in the plain one.

    ``name``: its path, as in ``named_parameters``. Returns None for what the plain model does not
    have: adapters, and the copies that train of ``trained_modules``. Names of a model without
    adapters are their own.
    """
    if is_adapter(name) or ".modules_to_save." in name:
        return None
    return name.replace(".base_layer.", ".").replace(".original_module.", ".")


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def initialize(model: nn.Module, job: Job) -> None:
    """Give adapters their first values, as PEFT does: after the base has its own.

    A is uniform and B zero, so that the model begins as its base; a magnitude is the norm of a row
    of the base's weight; ``trained_modules`` begin as copies.

    ``job``: its job; one without adapters leaves the model as it is.
    """
    if job.adapter is None:
        return
    from peft.utils.other import ModulesToSaveWrapper

    for layer in adapted_layers(model):
        layer.reset_lora_parameters(NAME, init_lora_weights=True)
        if job.method == "dora":
            layer.lora_magnitude_vector[NAME].weight.copy_(whole(_norms(layer)))
    for module in model.modules():
        if isinstance(module, ModulesToSaveWrapper):
            _copy(module.original_module, module.modules_to_save[NAME])


def _norms(layer: nn.Module) -> torch.Tensor:
    """Return the norm of each row of a base's weight, [out]; B is zero, so that it is the sum's.

    PEFT adds B A first, which is sharded beside a weight in 4 bits that was gathered.
    """
    base = layer.get_base_layer()
    weight = full_weight(base)
    rows = weight.T if isinstance(base, Conv1D) or _was_transposed(layer) else weight
    return torch.linalg.norm(rows, dim=1)


def adapted_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers that have an adapter."""
    from peft.tuners.lora import LoraLayer

    yield from (module for module in model.modules() if isinstance(module, LoraLayer))


def _copy(source: nn.Module, target: nn.Module) -> None:
    for old, new in zip(source.parameters(), target.parameters(), strict=True):
        new.copy_(old)


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def merged_weight(layer: nn.Module, *, dtype: torch.dtype) -> torch.Tensor:
    """Return the one weight that stands for a base layer with its adapter.

    Computed in fp32 whatever either is held in, and rounded once.

    Returns laid out as the base layer's.
    """
    transposed = isinstance(layer.get_base_layer(), Conv1D) or _was_transposed(layer)
    base = whole(full_weight(layer.get_base_layer())).float()
    a, b = (whole(of[NAME].weight).float() for of in (layer.lora_A, layer.lora_B))
    rows = (base.T if transposed else base) + b @ a * layer.scaling[NAME]
    if NAME in layer.lora_magnitude_vector:
        magnitude = whole(layer.lora_magnitude_vector[NAME].weight).float()
        rows = (magnitude / rows.norm(dim=1))[:, None] * rows
    return (rows.T if transposed else rows).to(dtype).contiguous()


def _was_transposed(layer: nn.Module) -> bool:
    return bool(getattr(layer.get_base_layer(), "brimful_transposed", False))


def full_weight(layer: nn.Module) -> torch.Tensor:
    """Return a layer's weight, dequantised where it is quantised."""
    weight: torch.Tensor = dequantize(layer) if is_quantized(layer) else layer.weight
    return weight
