"""Integers that are known: the few values a program may look at while everything else is fake.

Which rows a sampler picks, whether a padding mask masks anything, how many tokens count: programs
decide by such integers what to allocate. So tensors of integers and booleans that are made from
known ones keep a real twin on the host, up to a size, and so do single floats: the gradient that a
backward pass begins with is 1, and kernels of others look whether it is. What is computed from
unknown values has none, but that numbers are finite: a program that looks for infinities in its
gradients finds none. Draws are drawn for real, from PyTorch's own generator.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch._subclasses
from torch._subclasses.fake_tensor import FakeTensor

from brimful.pretend import known_collectives, real_values
from brimful.pretend.fake_mode import NotesBehind
from brimful.pretend.finite_values import of_finite

MOST_ELEMENTS = 2**20
"""Of a tensor that keeps a twin: token numbers of a batch, not a mask of every pair of them."""
TWIN = "_brimful_twin"
"""The attribute of a fake tensor that holds its known values."""
_ALIKE = "_brimful_alike"
"""The attribute of a fake tensor of floats that are all one known number."""
KNOWN = (TWIN, _ALIKE)
"""Attributes that hold real tensors."""
REALLY_FAKE = (torch._subclasses, "FakeTensor", FakeTensor)  # noqa: SLF001 - its home
"""What undoes that libraries find no fake tensor where values are known: a name and its value."""
_aten = torch.ops.aten
_COLLECTIVES = "c10d"
_HOST = torch.device("cpu")
_FILLS = frozenset({
    _aten.ones_like.default, _aten.zeros_like.default, _aten.full_like.default,
})  # fmt: skip

_AT_PLACES = frozenset({
    _aten.index_put_.default, _aten.scatter_.src, _aten.scatter_.value, _aten.masked_fill_.Scalar,
    _aten.index_fill_.int_Scalar,
})  # fmt: skip
"""Operations that write some of a tensor's values."""

_CONSTANTS: dict[Any, int | None] = {
    _aten.zeros.default: 0,
    _aten.zeros_like.default: 0,
    _aten.new_zeros.default: 0,
    _aten.ones.default: 1,
    _aten.ones_like.default: 1,
    _aten.full.default: None,
    _aten.full_like.default: None,
}
"""Operations that make tensors of one number, with it; None: it is their second argument."""

_DRAWS = _aten.bernoulli.default
"""Draws zeros and ones as floats, which programs then take for a mask: of words to hide."""
_DECIDED = {
    _aten.bitwise_and.Tensor: 0,
    _aten.logical_and.default: 0,
    _aten.bitwise_or.Tensor: 1,
    _aten.logical_or.default: 1,
}
"""Operations of two of which one may decide the result, with what it then is, and the result."""

_SCALES = frozenset({_aten.mul.Tensor, _aten.div.Tensor})
"""Operations that change each of a tensor's numbers alike, where the other is one number."""
_BY_VALUES = frozenset({_aten.index.Tensor, _aten.masked_select.default})
"""Operations whose results have as many elements as values say."""
_OF_ALL = frozenset({
    _aten.any.default, _aten.all.default, _aten.max.default, _aten.min.default,
})  # fmt: skip
"""Operations that find of many numbers that are alike what they find of one of them."""


class KnownValues(NotesBehind):
    """Computes integers beside the fake tensors that stand for them."""

    def __init__(self) -> None:
        """Know nothing yet."""
        super().__init__()
        self._spoilt: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation on fake tensors, and on their twins where all of them are known."""
        kwargs = kwargs or {}
        if func is _aten.index.Tensor:
            args = self._positions(*args)
        elif func is _aten.masked_select.default and self.value(args[1]) is not None:
            func, args = _aten.index.Tensor, self._selected(*args)
        try:
            out = func(*args, **kwargs)
        except real_values.UNKNOWN:
            twins = self._twins(args, kwargs)
            if twins is None:
                raise
            return self._as_fake(_really(func, *twins), _device_of(args))
        self.note(func, args, kwargs, out)
        return out

    def changes(self, func: Any) -> bool:
        """Whether it chooses as many elements as values say."""
        return func in _BY_VALUES

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Compute what is known beside the fake tensors, and forget what is not any more."""
        if func.namespace == _COLLECTIVES:
            self._exchange(func, args)
        elif func is _aten.topk.default and self.value(args[0]) is None:
            # The same of `topk` along rows: which columns it finds, of scores that are not known.
            scores, (_, places) = args[0], out
            along = args[2] if len(args) > 2 else -1  # noqa: PLR2004 - its place
            is_last = along in {-1, scores.dim() - 1} and scores.dim() > 1
            if is_last and _may_be_known(places) and scores.shape[-1]:
                rows = places.numel() // max(places.shape[-1], 1)
                with torch._C._DisableTorchDispatch():  # noqa: SLF001
                    found = _spread(rows, places.shape[-1], scores.shape[-1])
                    setattr(places, TWIN, found.view(places.shape))
        else:
            if func in _CONSTANTS:
                self._fill(func, args, out)
            elif (number := of_finite(func, args)) is not None:
                self._know_alike(out, number)
            elif func in _SCALES:
                self._scale(func, args, out)
            self._follow(func, args, kwargs, out)

    def value(self, tensor: Any) -> torch.Tensor | None:
        """Return the known values of a tensor, None where they are not known."""
        twin: torch.Tensor | None = getattr(tensor, TWIN, None)
        if twin is None and not isinstance(tensor, FakeTensor) and _is_followed(tensor):
            twin = tensor
        if twin is not None and twin.untyped_storage()._cdata in self._spoilt:  # noqa: SLF001
            return None
        return twin

    def copies_of(self, tensor: Any) -> dict[str, torch.Tensor]:
        """Return copies of what is known of a tensor, by attribute."""
        found = {name: vars(tensor)[name] for name in KNOWN if name in vars(tensor)}
        with torch._C._DisableTorchDispatch():  # noqa: SLF001
            return {
                name: twin.clone()
                for name, twin in found.items()
                if twin.untyped_storage()._cdata not in self._spoilt  # noqa: SLF001
            }

    def choose(self, chosen: torch.Tensor, count: int) -> None:
        """Take it that choices, which nobody knows, are spread evenly, one after the other."""
        if isinstance(chosen, FakeTensor) and _may_be_known(chosen):
            rows, columns = chosen.numel() // chosen.shape[-1], chosen.shape[-1]
            with torch._C._DisableTorchDispatch():  # noqa: SLF001
                mask = torch.zeros((rows, columns), dtype=torch.bool)
                mask.scatter_(1, _spread(rows, count, columns), value=True)
                setattr(chosen, TWIN, mask.view(chosen.shape))

    def _fill(self, func: Any, args: Any, out: Any) -> None:
        """Know floats that are all alike, until something is written into them: a mask of zeros.

        One number stands for them, and no host memory is taken.
        """
        is_new = isinstance(out, FakeTensor) and out.is_floating_point() and out.dim() > 0
        if is_new and out.numel() <= MOST_ELEMENTS:
            with torch._C._DisableTorchDispatch():  # noqa: SLF001
                number = args[1] if _CONSTANTS[func] is None else _CONSTANTS[func]
                one = torch.tensor(number, dtype=out.dtype, device=_HOST)
                setattr(out, _ALIKE, one.expand(out.shape))

    def _scale(self, func: Any, args: Any, out: Any) -> None:
        """Know floats that are all alike once more: each is changed by the same number."""
        one = self._one_of(args[0])
        if one is not args[0] and out.is_floating_point() and isinstance(args[1], int | float):
            with torch._C._DisableTorchDispatch():  # noqa: SLF001
                number = func(one, args[1]).item()
            self._know_alike(out, number)

    def _exchange(self, func: Any, args: Any) -> None:
        """Follow a collective, whose schema does not say that it writes into its first argument."""
        twins = self._twins(args, {})
        if twins is not None and known_collectives.exchange(func, twins[0]):
            self._keep(args[0], twins[0][0])
        else:
            self._forget_all(args[0])

    def _forget_all(self, x: Any) -> None:
        if isinstance(x, (list, tuple)):
            for each in x:
                self._forget_all(each)
        else:
            self.forget(x)

    def _follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        changes = func._schema.is_mutable  # noqa: SLF001
        outputs = out if isinstance(out, (tuple, list)) else (out,)
        if not changes and not _is_kept(func, outputs):
            return
        args = self._that_matter(func, args, out)
        if func in _AT_PLACES:
            self._write_apart(args[0])
        twins = self._twins(args, kwargs)
        if twins is None:
            if changes:
                self._spoil(func, args, kwargs)
            self._decide(func, args, out)
            return
        try:
            results = _really(func, *twins)
        except RuntimeError:
            # A kernel that the host has not, or that writes into a twin that is one number for
            # many, leaves its result unknown, and what it was to write into.
            if changes:
                self._spoil(func, args, kwargs)
            return
        results = results if isinstance(results, (tuple, list)) else (results,)
        for fake, twin in zip(outputs, results, strict=True):
            if isinstance(fake, FakeTensor):
                setattr(fake, TWIN, twin)

    def _that_matter(self, func: Any, args: Any, out: Any) -> Any:
        """Return the arguments whose values an operation takes."""
        if func in _FILLS:  # what they are made like gives them a shape and no value
            return (_host_like(out), *args[1:])
        return (self._one_of(args[0]),) if func in _OF_ALL else args

    def _know_alike(self, out: Any, number: float) -> None:
        """Know of a result that all of it is one number."""
        with torch._C._DisableTorchDispatch():  # noqa: SLF001
            one = torch.tensor(number, dtype=out.dtype, device=_HOST).expand(out.shape)
            is_small = out.numel() <= MOST_ELEMENTS
            setattr(out, TWIN if is_small else _ALIKE, one.clone() if is_small else one)

    def _one_of(self, x: Any) -> Any:
        """Return one of numbers that are all alike, else the tensor."""
        alike = getattr(x, _ALIKE, None)
        if alike is None or alike.untyped_storage()._cdata in self._spoilt:  # noqa: SLF001
            return x
        with torch._C._DisableTorchDispatch():  # noqa: SLF001
            return alike.as_strided((), ())

    def _decide(self, func: Any, args: Any, out: Any) -> None:
        """Know what one of two decides: that a text is finished at its longest, whatever its end.

        Bits of integers are decided by none set, and those of booleans by all set too.
        """
        number = _DECIDED.get(func)
        if number is None or (number and out.dtype != torch.bool):
            return
        with torch._C._DisableTorchDispatch():  # noqa: SLF001
            values = [value for value in map(self.value, args) if value is not None]
            if any(bool(value.eq(number).all()) for value in values):
                setattr(out, TWIN, torch.full(out.shape, number, dtype=out.dtype, device=_HOST))

    def _keep(self, x: Any, twin: Any) -> None:
        """Give fake tensors the values that were written into their twins."""
        if isinstance(x, FakeTensor):
            setattr(x, TWIN, twin)
        elif isinstance(x, (list, tuple)):
            for each, other in zip(x, twin, strict=True):
                self._keep(each, other)

    def _twins(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Return the arguments with twins for tensors and the host for devices, or None."""
        try:
            return self._twin(list(args)), {k: self._twin(v) for k, v in kwargs.items()}
        except LookupError:
            return None

    def _twin(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            value = self.value(x)
            if value is None:
                value = getattr(x, _ALIKE, None)
            if value is None or value.untyped_storage()._cdata in self._spoilt:  # noqa: SLF001
                raise LookupError
            return value
        if isinstance(x, (list, tuple)):
            return [self._twin(y) for y in x]
        return _HOST if isinstance(x, torch.device) else x

    def _write_apart(self, x: Any) -> None:
        """Give floats that are all one number a value each, as some of them will be another."""
        alike = getattr(x, _ALIKE, None)
        if alike is None or alike.untyped_storage()._cdata in self._spoilt:  # noqa: SLF001
            return
        with torch._C._DisableTorchDispatch():  # noqa: SLF001
            setattr(x, TWIN, alike.clone(memory_format=torch.contiguous_format))
        delattr(x, _ALIKE)

    def _spoil(self, func: Any, args: Any, kwargs: Any) -> None:
        """Forget what was known of a tensor into which something unknown is written."""
        for i, argument in enumerate(func._schema.arguments):  # noqa: SLF001
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            target = args[i] if i < len(args) else kwargs.get(argument.name)
            for x in target if isinstance(target, (list, tuple)) else (target,):
                self.forget(x)

    def forget(self, tensor: Any) -> None:
        """Know nothing any more of a tensor, nor of others that share its memory."""
        twin = getattr(tensor, TWIN, getattr(tensor, _ALIKE, None))
        if twin is not None:
            storage = twin.untyped_storage()
            key = storage._cdata  # noqa: SLF001
            self._spoilt[key] = weakref.ref(storage, lambda _: self._spoilt.pop(key, None))

    def _positions(self, tensor: Any, indices: Any) -> tuple[Any, Any]:
        """Replace known masks among indices by the positions that they select."""
        found: list[Any] = []
        for index in indices:
            is_mask = index is not None and index.dtype in {torch.bool, torch.uint8}
            value = self.value(index) if is_mask else None
            if value is None:
                found.append(index)
                continue
            with torch._C._DisableTorchDispatch():  # noqa: SLF001
                places = value.nonzero(as_tuple=True)
            found.extend(self._as_fake(place, index.device) for place in places)
        return tensor, found

    def _selected(self, tensor: Any, mask: Any) -> tuple[Any, Any]:
        """Return what ``masked_select`` indexes, as CUDA's kernel does it."""
        shape = torch.broadcast_shapes(tensor.shape, mask.shape)
        with torch._C._DisableTorchDispatch():  # noqa: SLF001
            places = self.value(mask).expand(shape).nonzero(as_tuple=True)  # type: ignore[union-attr]
        return tensor.expand(shape), [self._as_fake(place, mask.device) for place in places]

    def _as_fake(self, out: Any, device: Any) -> Any:
        """Return a fake tensor for each known one."""
        if isinstance(out, (tuple, list)):
            return type(out)(self._as_fake(x, device) for x in out)
        if not isinstance(out, torch.Tensor):
            return out
        fake = torch.empty_strided(out.shape, out.stride(), dtype=out.dtype, device=device)
        setattr(fake, TWIN, out)
        return fake


def _spread(rows: int, count: int, columns: int) -> torch.Tensor:
    """Return columns that rows choose, each as often as any other as far as that goes."""
    return (torch.arange(rows * count) % columns).view(rows, count)


def _really(func: Any, args: Any, kwargs: Any) -> Any:
    kwargs = {k: v for k, v in kwargs.items() if k != "pin_memory"}
    with torch._C._DisableTorchDispatch(), torch.no_grad():  # noqa: SLF001
        if func is _aten.histc.default and not args[0].is_floating_point():
            # CUDA's kernel counts integers too: which experts were chosen.
            return func(args[0].double(), *args[1:], **kwargs).to(args[0].dtype)
        return func(*args, **kwargs)


def _host_like(out: torch.Tensor) -> torch.Tensor:
    with torch._C._DisableTorchDispatch():  # noqa: SLF001
        return torch.empty(out.shape, dtype=out.dtype, device=_HOST)


def _is_followed(x: Any) -> bool:
    if not isinstance(x, torch.Tensor) or x.is_complex():
        return False
    return x.dim() == 0 or not x.is_floating_point()


def _may_be_known(x: Any) -> bool:
    return _is_followed(x) and x.numel() <= MOST_ELEMENTS


def _is_kept(func: Any, outputs: Any) -> bool:
    """Whether what an operation makes keeps its values, where those of its arguments are known."""
    if func is _DRAWS:
        return bool(outputs[0].numel() <= MOST_ELEMENTS)
    return all(map(_may_be_known, outputs))


def _device_of(args: Any) -> Any:
    for x in args:
        if isinstance(x, FakeTensor):
            return x.fake_device
        if isinstance(x, (list, tuple)) and (found := _device_of(x)) is not None:
            return found
    return None


def _without_values(known: KnownValues) -> type:
    """Return what stands for ``FakeTensor`` where a library asks whether it may look at values."""

    class LooksFake(type):
        def __instancecheck__(cls, x: Any) -> bool:
            return isinstance(x, FakeTensor) and known.value(x) is None

    return LooksFake("FakeTensorWithoutValues", (), {})


@contextlib.contextmanager
def knowing() -> Iterator[KnownValues]:
    """Keep known integers inside the block; entered inside the fake mode, before a tape.

    ``torch._subclasses.FakeTensor``, the name by which ``transformers.utils.is_fake_tensor`` finds
    out whether a mask may be looked at, says no of a tensor whose values are known.
    """
    known = KnownValues()
    tolist = FakeTensor.tolist

    def values_to_list(tensor: Any) -> Any:
        value = known.value(tensor)
        if value is None:
            return tolist(tensor)
        with torch._C._DisableTorchDispatch():  # noqa: SLF001
            return value.tolist()

    torch._subclasses.FakeTensor = _without_values(known)  # noqa: SLF001
    FakeTensor.tolist = values_to_list
    try:
        with known:
            yield known
    finally:
        FakeTensor.tolist = tolist
        torch._subclasses.FakeTensor = FakeTensor  # noqa: SLF001
