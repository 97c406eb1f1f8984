"""Names for what FSDP and DDP allocate: whole parameters for a while, gradients on their way.

A tape cannot tell them from activations: they are made in forward and outlive it. So the functions
that make them tell the tape. A function that some version of PyTorch has not is passed over; what
it allocates is then classified like all else.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, Protocol

from torch.distributed.fsdp import _flat_param, _runtime_utils
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param, _fsdp_param_group

from brimful.pretend import fake_world
from brimful.pretend.replacing import replaced
from brimful.values.results import GATHERED, GRADIENTS, REDUCED


class Tagger(Protocol):
    """What is told: a tape."""

    def tag(self, tensors: Iterable[Any], item: str) -> None:
        """Count the storages of ``tensors`` in the class ``item``."""


Wrap = Callable[[Tagger, Any], Any]


@contextlib.contextmanager
def named_buffers(tape: Tagger, *, kept: str = GRADIENTS) -> Iterator[None]:
    """Let buffers and gradients count as what they are inside the block, in a pretend world.

    ``kept``: the class of whole gradients that a backward pass leaves to a later one to reduce.
    """
    present = [
        (owner, name, wrap(tape, vars(owner)[name]))
        for owner, name, wrap in _wanted(kept)
        if owner is not None and name in vars(owner)
    ]
    with replaced(present):
        yield


def _wanted(kept: str) -> tuple[tuple[Any, str, Wrap], ...]:
    """List what to wrap: where it is, its name, and how."""
    param = getattr(_fsdp_param, "FSDPParam", None)
    return (
        (_fsdp_collectives, "_get_param_all_gather_inputs", _casts),
        (getattr(_fsdp_collectives, "DefaultAllGather", None), "__call__", _gathers),
        (getattr(_fsdp_collectives, "DefaultReduceScatter", None), "__call__", _reduces),
        (param, "init_all_gather_outputs", _unshards),
        (param, "alloc_all_gather_outputs", _unshards),
        (getattr(_fsdp_param_group, "FSDPParamGroup", None), "post_backward", _ends_backward(kept)),
        (fake_world, "_reduced", _buckets),
        (getattr(_flat_param, "FlatParamHandle", None), "_use_low_precision_shard", _casts_flat),
        (
            getattr(_flat_param, "FlatParamHandle", None),
            "_alloc_padded_unsharded_flat_param",
            _unshards_flat,
        ),
        (_runtime_utils, "_get_reduce_scatter_tensors", _reduces_flat),
        (_runtime_utils, "_post_backward_hook", _ends_backward_flat(kept)),
    )


def _casts(tape: Tagger, original: Any) -> Any:
    """Shards of parameters that are gathered in another type than they are held in."""

    @wraps(original)
    def inputs(params: Any) -> Any:
        found = original(params)
        for param, tensors in zip(params, found, strict=True):
            if param.param_dtype is not None:
                tape.tag(tensors, GATHERED)
        return found

    return inputs


def _gathers(tape: Tagger, original: Any) -> Any:
    """Shards of all, one after another."""

    @wraps(original)
    def gather(self: Any, output_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        tape.tag((output_tensor,), GATHERED)
        return original(self, output_tensor, *args, **kwargs)

    return gather


def _reduces(tape: Tagger, original: Any) -> Any:
    """Whole gradients of a unit in one buffer, and the shard that comes of them."""

    @wraps(original)
    def reduce(self: Any, output_tensor: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        tape.tag((input_tensor,), REDUCED)
        tape.tag((output_tensor,), GRADIENTS)
        return original(self, output_tensor, input_tensor, *args, **kwargs)

    return reduce


def _unshards(tape: Tagger, original: Any) -> Any:
    """Parameters put together."""

    @wraps(original)
    def unshard(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        tape.tag(self.all_gather_outputs, GATHERED)
        return made

    return unshard


def _ends_backward(kept: str) -> Wrap:
    """Whole gradients, in the type that computes and, if they are held, in that of reduction."""

    def wrap(tape: Tagger, original: Any) -> Any:
        @wraps(original)
        def post_backward(self: Any, *args: Any, **kwargs: Any) -> Any:
            tape.tag(_whole_gradients(self), GRADIENTS)
            made = original(self, *args, **kwargs)
            tape.tag(_whole_gradients(self), kept)
            return made

        return post_backward

    return wrap


def _ends_backward_flat(kept: str) -> Wrap:
    """The gradient of a flat parameter that is cut, which stays whole under ``no_sync``."""

    def wrap(tape: Tagger, original: Any) -> Any:
        @wraps(original)
        def post_backward(state: Any, handle: Any, *args: Any, **kwargs: Any) -> None:
            original(state, handle, *args, **kwargs)
            held = handle.flat_param.grad
            if held is not None and handle.uses_sharded_strategy and not state._sync_gradients:  # noqa: SLF001
                tape.tag((held,), kept)

        return post_backward

    return wrap


def _buckets(tape: Tagger, original: Any) -> Any:
    """DDP's; where gradients are views of them, they are told to be gradients later."""

    @wraps(original)
    def reduced(state: Any, bucket: Any) -> Any:
        tape.tag((bucket.buffer(),), REDUCED)
        return original(state, bucket)

    return reduced


def _casts_flat(tape: Tagger, original: Any) -> Any:
    """This device's piece of a flat parameter, in the type that is gathered."""

    @wraps(original)
    def use_shard(self: Any) -> None:
        original(self)
        tape.tag((self.flat_param._mp_shard,), GATHERED)  # noqa: SLF001

    return use_shard


def _unshards_flat(tape: Tagger, original: Any) -> Any:
    """A flat parameter, whole."""

    @wraps(original)
    def allocate(self: Any) -> Any:
        made = original(self)
        tape.tag((made,), GATHERED)
        return made

    return allocate


def _reduces_flat(tape: Tagger, original: Any) -> Any:
    """The gradient of a flat parameter, and the piece that comes of it."""

    @wraps(original)
    def tensors(state: Any, whole: Any) -> Any:
        padded, piece = original(state, whole)
        tape.tag((whole, padded), REDUCED)
        tape.tag((piece,), GRADIENTS)
        return padded, piece

    return tensors


def _whole_gradients(group: Any) -> Iterator[Any]:
    for param in group.fsdp_params:
        yield from unsharded_gradients(param)


def unsharded_gradients(param: Any) -> Iterator[Any]:
    """Yield what FSDP2 has of a parameter's gradient before it is reduced."""
    held = getattr(param, "unsharded_accumulated_grad", None)
    fresh = getattr(getattr(param, "_unsharded_param", None), "grad", None)
    yield from (tensor for tensor in (held, fresh) if tensor is not None)
