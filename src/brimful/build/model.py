"""The model: built on no device, moved to one, then filled, in the same way real or fake."""

import contextlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import nn
from torch._guards import detect_fake_mode
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, initialization
from transformers.pytorch_utils import Conv1D

from brimful.build.adapters import adapt, base_dtype, initialize
from brimful.build.attention import IMPLEMENTATION
from brimful.build.attention.own import attends_by_itself, read_as_one_text
from brimful.build.blocks import (
    embedding_of,
    give_switch,
    mark_text,
    mark_unit,
    parts_again,
    runs_as_one,
)
from brimful.build.decoder_check import check_decoder, check_scores, left_out
from brimful.build.experts import check_experts
from brimful.build.keep_fp32 import keep_fp32
from brimful.build.logits import LogitWay, mark_head
from brimful.build.offload import empty_at_home, is_away, sent_home
from brimful.build.own import own_memory, region_of
from brimful.build.parallel.draw import DrawnWhole
from brimful.build.parallel.stages import absent_modules, forget_absent, tie_absent
from brimful.build.precision import PARAMETER_DTYPE
from brimful.build.precision.kept import find_kept, hold
from brimful.build.quantize import fill, full_shape, is_quantized, read_by_copies
from brimful.build.switch import use_fixed_capacity
from brimful.build.user_module import UserModule, make, without_dropout
from brimful.build.weights import LOADED, Checkpoint, load, open_checkpoint, read_into
from brimful.errors import ModelConfigError, UnsupportedError
from brimful.models.dropout import DROPS, JITTERS
from brimful.models.generic import auto_class_of
from brimful.techniques.one_unit import check_unit
from brimful.values.job import Job
from brimful.values.strategy import Strategy, gathers

GIVEN = "given_fields"
"""Attribute of a model: fields of its configuration that training changed, as they were given."""
_NO_KERNEL = "does not support an attention implementation"
_REASON_LENGTH = 160
_STD = 0.02
"""Standard deviation of the weights of a ``Conv1D`` that its class leaves undrawn: its own."""
_WEIGHT = "weight"
_PADDING = "padding_idx"


def skeleton_of(auto_class: Any, job: Job, strategy: Strategy) -> nn.Module:
    """Build a ``transformers`` model on the ``meta`` device: shapes and code, no bytes.

    Dropout and every other noise is off, whatever the configuration says, unless the job asks.

    ``auto_class``: ``AutoModelForCausalLM`` or another of its kind. ``job``: says which model, and
    in which type its parameters are held. Raises UnsupportedError: the architecture does what this
    build path does not. Raises ModelConfigError: the class does not go with the architecture.
    """
    config = AutoConfig.for_model(job.model.model_type, **job.model.hf_config)
    before = dict(vars(config))
    _switch_off(config, JITTERS)
    if job.dropout == "off":
        _switch_off(config, DROPS)
    config.use_cache = False
    with torch.device("meta"):
        skeleton = _from_config(auto_class, config, job, strategy)
    _leave_devices(skeleton)
    mark_text(skeleton)
    give_switch(skeleton)
    mark_unit(skeleton)
    if runs_as_one(skeleton):
        check_unit(job, strategy, recomputes=bool(parts_again(skeleton)))
    check_scores(skeleton, job, strategy)
    check_experts(skeleton, job)
    way = LogitWay((), ())
    if auto_class is AutoModelForCausalLM:
        way = check_decoder(skeleton, job, strategy)
        if attends_by_itself(skeleton):
            read_as_one_text(skeleton)
    use_fixed_capacity(skeleton)
    _keep_types(skeleton, base_dtype(job))
    _untie(skeleton, job)
    after = vars(config)  # as before: some classes refuse a size that differs between blocks
    changed = {f: v for f, v in before.items() if v is not after[f] and _is_plain(v)}
    setattr(skeleton, GIVEN, changed)
    adapted = adapt(skeleton, job)
    mark_head(adapted, way)
    return keep_fp32(adapted, job, is_gathered=gathers(strategy))


def _from_config(auto_class: Any, config: Any, job: Job, strategy: Strategy) -> nn.Module:
    if auto_class is AutoModelForCausalLM:
        auto_class = getattr(transformers, auto_class_of(job.model.model_type))
    try:
        skeleton: nn.Module = auto_class.from_config(
            config,
            dtype=base_dtype(job),
            attn_implementation=IMPLEMENTATION[strategy.attention],
        )
    except Exception as error:  # its checks raise errors of many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if _NO_KERNEL in reason:
            raise UnsupportedError(
                f"{job.model.name} is of type {job.model.model_type}, which transformers runs with "
                f"eager attention only{_why_eager(auto_class, config)}; use eager, not "
                f"{strategy.attention}",
                nearest={"attention": "eager"},
            ) from error
        raise ModelConfigError(
            f"transformers cannot build {job.model.name} for task={job.task} "
            f"({reason[:_REASON_LENGTH]}); mend that field of its configuration"
        ) from error
    return skeleton


def _leave_devices(skeleton: nn.Module) -> None:
    """Take the bytes of parameters that a class makes by a call that heeds no ``meta``."""
    for module in skeleton.modules():
        for name, made in list(module.named_parameters(recurse=False)):
            if not made.is_meta:
                blank = nn.Parameter(made.data.to("meta"), requires_grad=made.requires_grad)
                setattr(module, name, blank)


def _why_eager(auto_class: Any, config: Any) -> str:
    """Say what fused attention would leave out, where the class tells its attention of it."""
    model_class = auto_class._model_mapping[type(config)]  # noqa: SLF001 - as from_config does
    what = left_out(model_class)
    return f" (fused kernels would leave out its {what})" if what else ""


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | float | int)


def _switch_off(config: Any, names: re.Pattern[str]) -> None:
    """Set what is named so to 0, in the parts of a composite configuration too."""
    for field, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            _switch_off(value, names)
        elif names.search(field) and type(value) in {float, int}:  # no switch, as token_dropout
            setattr(config, field, type(value)(0))


def _keep_types(skeleton: Any, dtype: torch.dtype) -> None:
    """Hold in fp32 what the architecture says must not be held in a type of half the size.

    Vectors that a class makes in fp32 whatever it is built in are held as a checkpoint's are.
    """
    for parameter in skeleton.parameters():
        if parameter.ndim == 1 and parameter.dtype == torch.float32 != dtype:
            parameter.data = parameter.data.to(dtype)
    patterns = skeleton._get_dtype_plan(dtype)  # noqa: SLF001 - as from_pretrained does
    for name, parameter in skeleton.named_parameters():
        parts = name.split(".")
        for pattern, kept in patterns.items():
            if pattern in parts or pattern in name.rpartition(".")[0]:
                parameter.data = parameter.data.to(kept)


def _untie(skeleton: Any, job: Job) -> None:
    """Give the output layer a weight of its own where the configuration says that it has one.

    ``T5Config`` ties in any case and leaves it to the checkpoint to untie (T5 1.1 has both).
    """
    head = skeleton.get_output_embeddings()
    if head is None or job.model.tied_embeddings:
        return
    if head.weight is embedding_of(skeleton).weight:
        head.weight = nn.Parameter(torch.empty_like(head.weight))
        for name in [n for n, m in skeleton.named_modules() if m is head]:
            skeleton.all_tied_weights_keys.pop(f"{name}.{_WEIGHT}", None)


def materialize(skeleton: nn.Module, *, device: torch.device, job: Job) -> nn.Module:
    """Give the skeleton memory on ``device`` and its first weights, in place.

    Under a fake mode its bytes are pretend, and no checkpoint is read: its values are nobody's.

    ``skeleton``: built on ``meta``. ``job``: says the seed, and the weights that it starts from.
    Raises InputError: the weights are not there, or not of this model.
    """
    torch.manual_seed(job.seed)
    if isinstance(skeleton, UserModule):
        _build_on(skeleton, device, job)
        return skeleton.train()
    allocate(skeleton, device)
    checkpoint = _checkpoint_of(skeleton, job)
    _fill_quantized(skeleton, device, checkpoint)
    if checkpoint is not None:
        load(checkpoint)
    with DrawnWhole(device):
        with _padding_left(skeleton):
            skeleton.initialize_weights()
        _draw_left(skeleton)
        _blank_padding(skeleton)
        initialize(skeleton, job)
    forget_absent(skeleton)
    return skeleton.train()


def _draw_left(skeleton: nn.Module) -> None:
    """Draw layers that a class leaves as they made themselves, which is on no device here."""
    makers = {type(m) for m in skeleton.modules() if isinstance(m, PreTrainedModel)}
    told = [inspect.getsource(each) for maker in makers for each in _drawing(maker)]
    if any(Conv1D.__name__ in source for source in told):
        return
    for module in skeleton.modules():
        if type(module) is Conv1D:
            initialization.normal_(module.weight, std=_STD)
            initialization.zeros_(module.bias)


def _drawing(model_class: type) -> Iterator[Any]:
    """Yield how a class of transformers and those above it draw the weights of a module."""
    for each in model_class.__mro__:
        if "_init_weights" in vars(each):
            yield vars(each)["_init_weights"]


def _padded(skeleton: nn.Module) -> list[tuple[Any, int]]:
    """List the embeddings that are sharded and have a row of padding, and which it is."""
    sharded = [m for m in skeleton.modules() if isinstance(getattr(m, _WEIGHT, None), DTensor)]
    found = [(module, getattr(module, _PADDING, None)) for module in sharded]
    return [(module, row) for module, row in found if row is not None]


@contextlib.contextmanager
def _padding_left(skeleton: nn.Module) -> Iterator[None]:
    """Let no class blank rows of a shard inside the block.

    Of a shard of a shard it would be the row of that number of every part (torch 2.13).
    """
    padded = _padded(skeleton)
    for module, _ in padded:
        setattr(module, _PADDING, None)
    try:
        yield
    finally:
        for module, row in padded:
            setattr(module, _PADDING, row)


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def _blank_padding(skeleton: Any) -> None:
    """Set the row of padding to 0 where it is sharded: one row of a shard is a copy of it."""
    head = skeleton.get_output_embeddings()
    for module, padding in _padded(skeleton):
        if head is not None and head.weight is module.weight:
            continue  # drawn once more as the head's, the row of padding too
        rows = region_of(module.weight)[0]
        if rows.start <= padding < rows.stop and not hasattr(module.weight, LOADED):
            own_memory(module.weight)[padding - rows.start] = 0


def _checkpoint_of(model: nn.Module, job: Job) -> Checkpoint | None:
    if job.weights is None or detect_fake_mode() is not None:
        return None
    return open_checkpoint(model, job.weights)


def _build_on(skeleton: UserModule, device: torch.device, job: Job) -> None:
    """Build the user's module on the device, by the user's own code."""
    with torch.device(device):
        skeleton.adopt(make(skeleton.name))
    kept = find_kept(skeleton, job.keep_fp32)
    hold(skeleton, PARAMETER_DTYPE[job.precision], besides=kept.values())
    keep_fp32(skeleton, job)
    if job.dropout == "off":
        without_dropout(skeleton.model)
    checkpoint = _checkpoint_of(skeleton.model, job)
    if checkpoint is not None:
        load(checkpoint)


def allocate(skeleton: nn.Module, device: torch.device) -> None:
    """Replace every meta tensor by an empty one on ``device``, a shared one by one.

    ``Module.to_empty`` would allocate tied weights twice. Quantised weights are left: ``fill``
    makes them. What other devices of a pipeline have is left on ``meta``.
    """
    made: dict[int, torch.Tensor] = {}
    elsewhere = absent_modules(skeleton)
    for module in (m for m in skeleton.modules() if m not in elsewhere):
        for tensors in (module._parameters, module._buffers):  # noqa: SLF001
            for name, tensor in tensors.items():
                if tensor is not None and not _is_made_by_fill(module, name):
                    if id(tensor) not in made:
                        made[id(tensor)] = _empty_like(tensor, device)
                    tensors[name] = made[id(tensor)]
    tie_absent(skeleton)


def _is_made_by_fill(module: nn.Module, name: str) -> bool:
    """Whether ``fill`` makes a tensor; of a sharded one it fills what is there."""
    return (
        name == _WEIGHT and is_quantized(module) and not isinstance(getattr(module, name), DTensor)
    )


def _empty_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    at_home = empty_at_home(tensor, device)
    if at_home is not None:
        return at_home
    empty = torch.empty_like(tensor, device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def _fill_quantized(
    skeleton: nn.Module, device: torch.device, checkpoint: Checkpoint | None
) -> None:
    """Quantise layer by layer: one weight in full at a time, read or drawn.

    On the device: of what is kept on the host its bytes go there.
    """
    for name, layer in _quantized(skeleton, checkpoint):
        goes = is_away(layer.weight)
        weight = torch.empty(full_shape(layer), dtype=layer.compute_dtype, device=device)
        if name is not None and checkpoint is not None:
            read_into(checkpoint, name, weight)
        else:
            weight.normal_(std=getattr(skeleton.config, "initializer_range", 0.02))
        fill(layer, weight)
        del weight  # before the next one is made
        if goes:
            layer.weight = sent_home(layer.weight, device)
            read_by_copies(layer)
        setattr(layer.weight, LOADED, True)


def _quantized(
    skeleton: nn.Module, checkpoint: Checkpoint | None
) -> Iterator[tuple[str | None, Any]]:
    """Yield the quantised layers, and under which name each is in the checkpoint."""
    targets = checkpoint.targets if checkpoint else {}
    names = {id(layer): name for name, layer in targets.items() if isinstance(layer, nn.Module)}
    for layer in skeleton.modules():
        if is_quantized(layer):
            yield names.get(id(layer)), layer
