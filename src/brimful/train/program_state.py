"""What of a program must outlive its process: which tensors, which plain numbers, and back again.

Saved is what training changes: trainable parameters, persistent buffers, every entry of the
optimizer's state whatever the optimizer, the loss scaler, random states. A frozen base is saved
where it is random and no quantised copy; all else of it the build path makes again (from
``job.weights``, or from the seed), and a checksum says whether it became the same: a checkpoint
of adapters stays as small as they are, and a base that changed on the disk is noticed.

Knows nothing of files and folders.
"""

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from brimful.build.assemble import build_skeleton
from brimful.build.offload import HostOptimizer
from brimful.build.offload.host import take
from brimful.build.own import (
    mark_range,
    num_pieces,
    own_memory,
    piecewise,
    range_of,
    ranged_as,
    whole,
)
from brimful.build.parallel.flat import plain_path
from brimful.build.program import Program, named_parameters, named_state, own_optimizer
from brimful.build.quantize import is_quantized, know_states
from brimful.errors import FileFormatError, UnsupportedError
from brimful.train.tensor_files import TensorShape
from brimful.train.world import of_all
from brimful.units import MIB
from brimful.values.results import OPTIMIZER_STATE
from brimful.values.strategy import stage_rank

Plain = bool | int | str | None
"""A plain value; a float is its ``float.hex()``, which is exact and knows infinity."""

_CHUNK_BYTES = 64 * MIB
_NUMBERS = (bool, int, float, type(None))
T = TypeVar("T")


class PlainState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program holds besides tensors.

    Attributes:
        device: Type of the device that it was on.
        optimizer: Plain values of the optimizer's state, per parameter and key.
        groups: Plain numbers of the optimizer's groups.
        scaler: The loss scaler's state, skipped steps included; None where there is none.
        shared: Names of tensors that are the very memory of another, and that one's name.
        on_host: Names of optimizer tensors in host memory while the program was on a device.
        is_offloaded: Whether that was the program's own choice, which another need not share.
        base_crc32: Checksum of the frozen tensors that are not saved; None where all are.
    """

    device: str
    optimizer: dict[str, dict[str, Plain]]
    groups: tuple[dict[str, Plain], ...]
    scaler: dict[str, Plain] | None
    shared: dict[str, str]
    on_host: tuple[str, ...]
    base_crc32: int | None
    is_offloaded: bool = False


class ProgramState(NamedTuple):
    """A program's state; ``program`` is the memory that trains, or a copy, ``random`` a copy."""

    program: dict[str, torch.Tensor]
    random: dict[str, torch.Tensor]
    plain: PlainState

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All of them by their names."""
        return {**self.program, **self.random}


def capture(program: Program, *, base_crc32: int | None) -> ProgramState:
    """List a program's state. Its tensors are the very memory that trains: no copy is made.

    ``base_crc32``: what ``base_checksum`` says of it; the same from the first step to the last.
    Raises UnsupportedError: the optimizer keeps something that is neither a tensor nor a number.
    """
    tensors, shared = _saved_once(program)
    entries: dict[str, dict[str, Plain]] = {}
    for parameter_name, key, value in _entries(program):
        if not isinstance(value, torch.Tensor):
            entries.setdefault(parameter_name, {})[key] = _pack(value)
    plain = PlainState(
        device=program.device.type,
        optimizer=entries,
        groups=tuple(_group_numbers(group) for group in program.optimizer.param_groups),
        scaler=_scaler_state(program),
        shared=shared,
        on_host=tuple(_on_host(program, tensors)),
        base_crc32=base_crc32,
        is_offloaded=isinstance(program.optimizer, HostOptimizer),
    )
    return ProgramState(tensors, random_states(program.device), plain)


def room_for(
    program: Program, saved: Mapping[str, TensorShape], plain: PlainState
) -> dict[str, torch.Tensor]:
    """Make room to load into: a fresh optimizer has no state before its first step.

    Returns the model's own memory, and new memory for the rest, under the names that the program
    knows: not those of the checkpoint where that is of another model.
    """
    room = {**_model_tensors(program), **random_states(program.device)}
    trained = _updated_here(program)
    for name, shape in saved.items():
        _, parameter_name = _split(name)
        if parameter_name in trained:
            # Whether a parameter's state is on the host between updates (`offload.travelling`).
            if (
                program.early is not None
                and trained[parameter_name] in program.early.travelling
                and math.prod(shape.size) > 1
            ):
                room[name] = take(OPTIMIZER_STATE, shape.size, shape.dtype, program.device)
                continue
            on_host = _belongs_on_host(program, name, shape, plain)
            device = torch.device("cpu") if on_host else program.device
            room[name] = _empty(shape, trained[parameter_name], device)
    return room


def adopt(program: Program, room: Mapping[str, torch.Tensor], plain: PlainState) -> None:
    """Give a program the state that was loaded into ``room``; the model's is there already.

    Raises FileFormatError: ``plain`` is of another program.
    """
    trained, here = _trained(program), _updated_here(program)
    state = own_optimizer(program).state
    for name, twin in [*((name, name) for name in room), *plain.shared.items()]:
        key, parameter_name = _split(name)
        if key is not None and _known(trained, parameter_name) is here.get(parameter_name):
            state[trained[parameter_name]][key] = _known(room, twin)
    for parameter_name, numbers in plain.optimizer.items():
        if _known(trained, parameter_name) is here.get(parameter_name):
            unpacked = {key: _unpack(value) for key, value in numbers.items()}
            state[trained[parameter_name]].update(unpacked)
    for group, numbers in zip(program.optimizer.param_groups, plain.groups, strict=False):
        group.update({key: _unpack(value) for key, value in numbers.items()})
    if isinstance(program.optimizer, HostOptimizer):
        program.optimizer.refresh()
    scaler = getattr(program, "scaler", None)
    if (scaler is None) != (plain.scaler is None):
        has, lacks = ("checkpoint", "plan") if scaler is None else ("plan", "checkpoint")
        raise FileFormatError(
            f"the {has} has a loss scaler and the {lacks} has none; "
            f"resume with the plan that started the run"
        )
    if scaler is not None and plain.scaler is not None:
        scaler.load_state_dict({key: _unpack(value) for key, value in plain.scaler.items()})
    torch.set_rng_state(room["rng.cpu"])
    if "rng.cuda" in room:
        torch.cuda.set_rng_state(room["rng.cuda"], program.device)


def of_others(program: Program, saved: Mapping[str, TensorShape]) -> set[str]:
    """Name what is saved of parameters that another device updates (ZeRO-1), or has (a pipeline).

    Of many processes all call this.
    """
    here, model = _updated_here(program).keys(), _model_tensors(program).keys()
    every = [(set(here), set(model))]
    if program.pipeline is not None:
        every = [(set(names), set(kept)) for names, kept in of_all((list(here), list(model)))]
    trained = _trained(program).keys() | {name for names, _ in every for name in names}
    tensors = {name for _, kept in every for name in kept}
    elsewhere = trained - here
    return {name for name in saved if _split(name)[1] in elsewhere or name in tensors - model}


def merged(states: Sequence[PlainState]) -> PlainState:
    """Put together what several devices know of one program, each of what it updates."""
    first = states[0]
    known: dict[str, dict[str, Plain]] = {}
    shared: dict[str, str] = {}
    for state in states:
        known |= state.optimizer
        shared |= state.shared
    on_host = sorted({name for state in states for name in state.on_host})
    return msgspec.structs.replace(first, optimizer=known, shared=shared, on_host=tuple(on_host))


def check_base(program: Program, plain: PlainState) -> None:
    """Refuse to go on over another frozen base than the adapters were trained on."""
    now = base_checksum(program)
    if now != plain.base_crc32:
        source = program.job.weights or f"seed={program.job.seed}"
        raise FileFormatError(
            f"the frozen weights had checksum {_hex(plain.base_crc32)} and those of {source} now "
            f"have {_hex(now)}; resume with the weights, torch and device that the run began with"
        )


def base_checksum(program: Program) -> int | None:
    """Return the CRC-32 of every frozen tensor that is not saved; None where all are.

    One number for a model, in the order of its names, however it is spread: of many devices all
    call this.
    """
    if program.pipeline is None:
        return _checksum(_unsaved_base(program), None)
    # Hand the checksum from stage to stage.
    strategy, copies = program.strategy, _copies(program)
    own = {name: x for name, x in _unsaved_base(program) if x not in copies}
    listed = of_all(list(own))
    firsts = [stage_rank(strategy, place) for place in range(strategy.pp)]
    owner = {name: place for place, first in enumerate(firsts) for name in listed[first]}
    every = [n for n in build_skeleton(program.job, strategy).state_dict() if n in owner]
    checksum: int | None = None
    for place, names in groupby(every, owner.__getitem__):
        some = [(name, own[name]) for name in names if name in own]
        checksum = of_all(_checksum(some, checksum))[firsts[place]]
    return checksum


def _checksum(named: Iterable[tuple[str, torch.Tensor]], checksum: int | None) -> int | None:
    """Go on with a checksum, ``None`` at first."""
    for name, tensor in named:
        checksum = zlib.crc32(name.encode(), checksum or 0)
        for chunk in _bytes_of(tensor):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _copies(program: Program) -> frozenset[torch.Tensor]:
    """Return tied weights of this device that another one of its row has as well."""
    return frozenset() if program.pipeline is None else program.pipeline.row.repeated


def random_states(device: torch.device) -> dict[str, torch.Tensor]:
    """Copy the states of torch's generators; nothing in a run draws from any other."""
    states = {"rng.cpu": torch.default_generator.get_state()}
    if device.type == "cuda":
        states["rng.cuda"] = torch.cuda.get_rng_state(device)
    return states


# The model.


def _saved_of_model(program: Program) -> Iterator[tuple[str, torch.Tensor]]:
    packed = {id(module.weight) for module in program.model.modules() if is_quantized(module)}
    # named_parameters lists a tied weight once; state_dict would save it twice.
    for name, parameter in named_parameters(program):
        is_whole = parameter.is_floating_point() and id(parameter) not in packed
        is_plain = is_whole and _is_plain(parameter)
        if parameter.requires_grad or (program.job.weights is None and is_plain):
            yield name, parameter
    persistent = named_state(program)
    for path, buffer in program.model.named_buffers():
        if (name := plain_path(path)) in persistent:
            yield name, buffer


def _unsaved_base(program: Program) -> Iterator[tuple[str, torch.Tensor]]:
    """List what is neither trained nor saved, each memory once.

    The scales of a quantised weight are tensors of its own, which ``state_dict`` lists, or buffers
    beside it.
    """
    seen = {id(tensor) for _, tensor in _saved_of_model(program)}
    know_states(program.model)
    listed = list(named_state(program).items())
    for prefix, module in program.model.named_modules():
        own = [p for p in module.parameters(recurse=False) if not p.requires_grad]
        if any(id(parameter) not in seen for parameter in own):
            listed += module.named_buffers(plain_path(prefix), recurse=False)
    for name, tensor in listed:
        if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def _model_tensors(program: Program) -> dict[str, torch.Tensor]:
    saved = _saved_of_model(program)
    return {f"model.{name}": ranged_as(tensor, tensor.detach()) for name, tensor in saved}


def _is_plain(value: object) -> bool:
    """Whether it is a tensor, whole or a shard, that is its own memory, and no wrapper."""
    return isinstance(value, torch.Tensor) and not is_traceable_wrapper_subclass(own_memory(value))


def _bytes_of(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Give a tensor's bytes on the host, a chunk at a time; a sharded one's are gathered."""
    flat = whole(tensor).contiguous().flatten().view(torch.uint8)
    for chunk in flat.split(_CHUNK_BYTES):
        yield memoryview(chunk.cpu().numpy())


# The optimizer, whichever it is: a dict of tensors and numbers for each parameter.


def _trained(program: Program) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in named_parameters(program) if p.requires_grad}


def _updated_here(program: Program) -> dict[str, torch.nn.Parameter]:
    """Name the parameters that this device updates: all, but for ZeRO-1."""
    groups = own_optimizer(program).param_groups
    here = {parameter for group in groups for parameter in group["params"]}
    return {name: p for name, p in _trained(program).items() if p in here}


def _entries(program: Program) -> Iterator[tuple[str, str, Any]]:
    """List (parameter's name, key, value) of the optimizer's state.

    Of a parameter none of whose numbers are here another device tells, which has updated it.
    """
    names = {parameter: name for name, parameter in _trained(program).items()}
    for parameter, state in own_optimizer(program).state.items():
        which = range_of(parameter)
        if which is not None and which.start == which.stop:
            continue
        for key, value in state.items():
            is_known = _is_plain(value) or isinstance(value, _NUMBERS)
            if parameter not in names or "." in str(key) or not is_known:
                raise UnsupportedError(
                    f"{type(program.optimizer).__name__} keeps {key!r} of type "
                    f"{type(value).__name__}, which no checkpoint can hold; use another optimizer"
                )
            if which is not None and _is_plain(value) and value.shape == parameter.shape:
                mark_range(value, which)
            yield names[parameter], key, value


def _saved_once(program: Program) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tell the tensors of model and optimizer from further names of the same memory."""
    tensors = _model_tensors(program)
    seen = {_memory(tensor): name for name, tensor in tensors.items()}
    shared = {}
    for parameter_name, key, value in _entries(program):
        if not isinstance(value, torch.Tensor):
            continue
        name = _name(parameter_name, key)
        first = seen.setdefault(_memory(value), name)
        if first == name:
            tensors[name] = ranged_as(value, value.detach())
        else:
            shared[name] = first
    return tensors, shared


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Say which memory a tensor is; unlike ``data_ptr`` this is known of pretend ones too."""
    own = own_memory(tensor)
    layout = (own.storage_offset(), own.shape, own.stride(), own.dtype)
    # Without elements all are alike, and nothing is shared.
    owner = own.untyped_storage()._cdata if own.numel() else id(tensor)  # noqa: SLF001
    return owner, *layout


def _group_numbers(group: dict[str, Any]) -> dict[str, Plain]:
    # Switches (fused, foreach) are the program's own; some optimizers count their steps here.
    return {key: _pack(value) for key, value in group.items() if type(value) in (int, float)}


def _on_host(program: Program, tensors: Mapping[str, torch.Tensor]) -> Iterator[str]:
    for name, tensor in tensors.items():
        key, _ = _split(name)
        if key is not None and tensor.device.type != program.device.type:
            yield name


def _belongs_on_host(program: Program, name: str, shape: TensorShape, plain: PlainState) -> bool:
    if isinstance(program.optimizer, HostOptimizer):
        return True
    if plain.device == program.device.type and not plain.is_offloaded:
        return name in plain.on_host
    # From another device: step counts live on the host unless the kernel reads them where it runs.
    kernel_reads = any(
        g.get("fused") or g.get("capturable") for g in program.optimizer.param_groups
    )
    return not shape.size and not kernel_reads


def _empty(shape: TensorShape, parameter: torch.nn.Parameter, device: torch.device) -> torch.Tensor:
    if (which := range_of(parameter)) is not None and shape.size == which.shape:
        own = torch.empty_like(parameter.detach(), dtype=shape.dtype, device=device)
        return ranged_as(parameter, own)
    if shape.size == parameter.shape:
        # In the parameter's own order of dimensions, as the optimizer would have made it.
        return torch.empty_like(parameter.detach(), dtype=shape.dtype, device=device)
    if not shape.size:
        return torch.empty(shape.size, dtype=shape.dtype, device=device)
    first, *rest = shape.size  # of all pieces
    own = (first // num_pieces(parameter), *rest)
    return piecewise(parameter, own, dtype=shape.dtype, device=device)


def _name(parameter_name: str, key: str) -> str:
    return f"optimizer.{key}.{parameter_name}"


def _split(name: str) -> tuple[str | None, str]:
    """Take an optimizer tensor's name apart into key and parameter; others have no key."""
    kind, _, rest = name.partition(".")
    key, _, parameter_name = rest.partition(".")
    return (key, parameter_name) if kind == "optimizer" else (None, "")


def _known(known: Mapping[str, T], name: str) -> T:
    if name not in known:
        raise FileFormatError(
            f"the checkpoint is of another model: {name} is in the checkpoint only; "
            f"resume with the plan that started the run"
        )
    return known[name]


# Scaler, generators, numbers.


def _scaler_state(program: Program) -> dict[str, Plain] | None:
    scaler = getattr(program, "scaler", None)
    if scaler is None:
        return None
    return {key: _pack(value) for key, value in scaler.state_dict().items()}


def _pack(value: float | None) -> Plain:
    return value.hex() if isinstance(value, float) else value


def _unpack(value: Plain) -> float | None:
    try:
        return float.fromhex(value) if isinstance(value, str) else value
    except (ValueError, OverflowError) as error:
        raise FileFormatError(f"the checkpoint holds {value!r}, which is no number") from error


def _hex(checksum: int | None) -> str:
    return "none" if checksum is None else f"{checksum:08x}"
