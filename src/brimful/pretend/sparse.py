"""Sparse tensors on the pretend GPU: what holds their bytes is their indices and their values.

PyTorch's fake mode makes them without entries, so that a gradient of a table of embeddings would
take nothing. Here one is a tensor made of two others (as a DTensor is of one): operations on it
are run on these, in the steps of PyTorch's own kernels, and the tape sees them.

How many entries are left where equal ones are added up (``coalesce``) is decided by values; as many
are counted as there can be.

Source: ``aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu`` and ``SparseCUDATensorMath.cu``,
``SparseTensor.cpp`` and ``SparseTensorMath.cpp`` beside; ``accumulateGrad`` of
``torch/csrc/autograd/functions/accumulate_grad.h``.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Self

import torch

from brimful.pretend import kernels
from brimful.pretend.cuda_calls import inward_keywords
from brimful.pretend.script_errors import NO_KERNEL

DISTINCT = "entries of sparse tensors that are added up count as distinct, the most there can be"
UNCOUNTED = "the workspace that cuSPARSE takes for a product with a sparse matrix is not counted"
on_assumed: list[Callable[[str], None]] = []
"""Called with one of these where it holds."""
_aten = torch.ops.aten
_MAKE = _aten._sparse_coo_tensor_with_dims_and_tensors.default  # noqa: SLF001
_ACCUMULATES = "torch::autograd::AccumulateGrad"
_SORTED_BYTES = 16
"""Of a key and its place, which a sort in order of keys holds twice."""
_current_node = torch._C._current_autograd_node  # noqa: SLF001


class SparseTensor(torch.Tensor):  # type: ignore[misc]  # torch is untyped to mypy
    """A tensor in coordinates.

    Attributes:
        its_indices: [sparse dimensions, entries].
        its_values: [entries, dense dimensions].
        coalesced: Whether each index is there once, in order.
    """

    @staticmethod
    def __new__(  # noqa: D102
        cls: type[Self], _: Any, values: torch.Tensor, size: Sequence[int], **__: Any
    ) -> Self:
        how = {"dtype": values.dtype, "device": values.device, "layout": torch.sparse_coo}
        made: Self = torch.Tensor._make_wrapper_subclass(cls, torch.Size(size), **how)  # noqa: SLF001
        return made

    def __init__(
        self,
        indices: torch.Tensor,
        values: torch.Tensor,
        size: Sequence[int],  # noqa: ARG002 - of the tensor that is made
        *,
        coalesced: bool = False,
    ) -> None:
        """Keep what it is made of."""
        self.its_indices, self.its_values, self.coalesced = indices, values, coalesced

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Name what holds the bytes."""
        return ["its_indices", "its_values"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on what the tensors are made of."""
        run = _RUN.get(func)
        if run is None:
            if func in _BY_VALUE or func in _IN_PLACE:
                return _by_value(func, *args, **(kwargs or {}))
            raise NotImplementedError(_refusal(func))
        return run(*args, **inward_keywords(kwargs or {}))


def parts_of(func: Any) -> Callable[..., Any] | None:
    """Return what makes a sparse tensor; None for other operations."""
    return _MADE_BY.get(func)


def _refusal(func: Any) -> str:
    """Say of an operation that it has no kernel for sparse tensors, or that it has none here."""
    name = func.name()
    keys = ("SparseCPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    is_there = any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)  # noqa: SLF001
    said = "is not simulated of sparse tensors" if is_there else NO_KERNEL
    return f"{name.partition('.')[0]} {said}"


def _made(
    _sparse_dim: int,
    _dense_dim: int,
    size: Sequence[int],
    indices: torch.Tensor,
    values: torch.Tensor,
    **how: Any,
) -> SparseTensor:
    return SparseTensor(indices, values, size, coalesced=bool(how.get("is_coalesced")))


def _assume(words: str) -> None:
    for tell in on_assumed:
        tell(words)


def _bags_gradient(*args: Any) -> Any:
    """``_embedding_bag_backward``: of a table with sparse gradients it is made of other parts."""
    *given, mode, is_sparse, weights = args[:_NUM_OF_BAGS]
    if not is_sparse:
        return NotImplemented
    grad, indices, offsets, bag_of, bag_size, _, *rest = given
    if not bag_of.numel():  # a CPU's forward pass leaves it out where it adds up
        bag_of = offsets.new_zeros(indices.shape[0] + 1).cumsum(0)[:-1]
    parts = (grad, indices, offsets, bag_of, bag_size, *rest, mode, weights)
    return _aten._embedding_bag_sparse_backward.default(*parts, *args[_NUM_OF_BAGS:])  # noqa: SLF001


def _refused(func: Any) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"{func.name().partition('.')[0]} is not simulated: of sparse tensors those are that "
            f"are made by torch.sparse_coo_tensor, or are gradients"
        )

    return refuse


_NUM_OF_BAGS = 11
"""Arguments before the index of what is padded."""
_OTHERS = (
    _aten._to_sparse.default, _aten._to_sparse.sparse_dim,  # noqa: SLF001
    _aten._to_sparse_csr.default, _aten._sparse_compressed_tensor_unsafe.default,  # noqa: SLF001
    _aten.sparse_compressed_tensor.comp_plain_value_size,
)  # fmt: skip
"""What makes sparse tensors of another layout, or with as many entries as values say."""
_MADE_BY: dict[Any, Callable[..., Any]] = {
    **{func: _refused(func) for func in _OTHERS},
    _MAKE: _made,
    _aten._embedding_bag_backward.default: _bags_gradient,  # noqa: SLF001
}


def _like(x: SparseTensor, values: torch.Tensor) -> SparseTensor:
    return SparseTensor(x.its_indices, values, x.shape, coalesced=x.coalesced)


def _num_sparse(x: SparseTensor) -> int:
    return int(x.its_indices.shape[0])


def _num_entries(x: SparseTensor) -> int:
    return int(x.its_indices.shape[1])


def _flat(x: SparseTensor) -> torch.Tensor:
    """Return one index for each entry."""
    return x.its_indices[0] if _num_sparse(x) == 1 else x.its_indices.new_empty(_num_entries(x))


# -- operations with steps of their own --


def _coalesced(x: SparseTensor) -> SparseTensor:
    """Sort entries by their index, and add up equal ones."""
    num = _num_entries(x)
    most = min(num, prod(x.shape[: _num_sparse(x)]))
    if num > 1:
        _assume(DISTINCT)
    values = x.its_values.contiguous()
    keys = _flat(x).clone() if kernels.current() == "cuda" else _flat(x)
    if kernels.current() == "cuda":
        order, firsts = torch.empty_like(keys), torch.empty_like(keys)
        buffers = keys.new_empty(_SORTED_BYTES * num, dtype=torch.uint8)
        del buffers, order, firsts
        summed = values.new_empty((most, *values.shape[1:]))
    else:  # which makes room for all before it sorts
        room = torch.empty_like(x.its_indices)
        summed = torch.empty_like(values)[:most]
        keys.sort(0)
        return SparseTensor(room[:, :most], summed, x.shape, coalesced=True)
    one = _num_sparse(x) == 1
    indices = keys[None, :most] if one else keys.new_empty((_num_sparse(x), most))
    return SparseTensor(indices, summed, x.shape, coalesced=True)


def _clone(x: SparseTensor, **_: Any) -> SparseTensor:
    """Copy it; a gradient of which autograd has the only one is taken as it is.

    Through a mode it seems to have others, and would be copied.
    """
    node = _current_node()
    is_whole = x.its_indices.is_contiguous() and x.its_values.is_contiguous()
    if node is not None and node.name() == _ACCUMULATES and is_whole:
        return _like(x, x.its_values)
    made = _like(x, x.its_values.clone())
    made.its_indices = x.its_indices.clone()
    return made


def _added(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Add two of which one is sparse, out of place."""
    if not isinstance(other, SparseTensor):
        x, other = other, x
    if isinstance(x, SparseTensor):
        return _add(_like(x, x.its_values), other, alpha=alpha)
    return _add(x.clone(), other, alpha=alpha)


def _add(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Add something sparse in place."""
    if not isinstance(x, SparseTensor):
        rows = prod(other.shape[: _num_sparse(other)])
        values = other.its_values.reshape(_num_entries(other), -1).contiguous().to(x.dtype)
        x.view(rows, -1).index_add_(0, _flat(other), values, alpha=alpha)
        return x
    more = other.its_values if alpha == 1 else other.its_values * alpha
    x.its_indices = torch.cat([x.its_indices, other.its_indices], 1)
    x.its_values = torch.cat([x.its_values, more], 0)
    x.coalesced = False
    if _num_entries(x) > x.numel():
        fewer = _coalesced(x)
        x.its_indices, x.its_values = fewer.its_indices, fewer.its_values
    return x


def _masked(x: torch.Tensor, mask: SparseTensor, **_: Any) -> SparseTensor:
    """Take of a dense tensor what another has entries for: its product with ones."""
    one = mask.its_values.new_ones(1)
    found = x[tuple(mask.its_indices)]
    made = _like(mask, found.mul(one))
    made.its_indices = mask.its_indices.clone()
    return made


def _dense(x: SparseTensor, dtype: Any = None, **_: Any) -> torch.Tensor:
    made: torch.Tensor = _add(x.its_values.new_zeros(x.shape, dtype=dtype), x)
    return made


def _copied(x: SparseTensor, **kwargs: Any) -> SparseTensor:
    """Move or cast it."""
    whole = {"layout": None} if "layout" in kwargs else {}
    how = kwargs | whole
    kept = {name: value for name, value in how.items() if name != "dtype"}
    return SparseTensor(
        _aten._to_copy.default(x.its_indices, **kept),  # noqa: SLF001
        _aten._to_copy.default(x.its_values, **how),  # noqa: SLF001
        x.shape,
        coalesced=x.coalesced,
    )


def _emptied(x: SparseTensor) -> SparseTensor:
    """Be zero: without entries."""
    x.its_indices, x.its_values = x.its_indices[:, :0].clone(), x.its_values[:0].clone()
    return x


def _said_coalesced(x: SparseTensor, coalesced: bool) -> SparseTensor:  # noqa: FBT001 - PyTorch's
    x.coalesced = coalesced
    return x


def _norms(tensors: Sequence[torch.Tensor], p: Any = 2, **_: Any) -> list[torch.Tensor]:
    """Return the norm of each of a list, one after the other, as of lists with sparse ones."""
    return [torch.linalg.vector_norm(each, p) for each in tensors]


def _norm(x: SparseTensor, p: Any = 2, *_: Any, **__: Any) -> torch.Tensor:
    summed = x if x.coalesced else _coalesced(x)
    return torch.norm(summed.its_values, p=2 if p is None else p)


def _product(x: SparseTensor, dense: torch.Tensor) -> torch.Tensor:
    """Multiply a sparse matrix by a dense one: by compressed rows, as cuSPARSE takes them."""
    summed = x if x.coalesced else _coalesced(x)
    if kernels.current() == "cuda":
        _assume(UNCOUNTED)
    rows = summed.its_indices.new_empty(x.shape[0] + 1, dtype=torch.int32)
    columns = summed.its_indices[1].to(torch.int32)
    del rows, columns
    return dense.new_empty((x.shape[0], dense.shape[1]))


def _add_product(_: torch.Tensor, x: SparseTensor, dense: torch.Tensor, **__: Any) -> torch.Tensor:
    return _product(x, dense)


def _turned(x: SparseTensor, *_: int) -> SparseTensor:
    """Return a matrix with its sides exchanged."""
    sides = tuple(reversed(x.shape))
    return SparseTensor(x.its_indices.flip(0), x.its_values, sides)


def _by_value(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation that is done to each entry: with a number, or with nothing."""
    given = [each.its_values if isinstance(each, SparseTensor) else each for each in args]
    made = func(x.its_values, *given, **kwargs)
    return x if func in _IN_PLACE else _like(x, made)


_IN_PLACE = {
    _aten.mul_.Tensor, _aten.mul_.Scalar, _aten.div_.Tensor, _aten.div_.Scalar, _aten.neg_.default,
    _aten.pow_.Scalar,
}  # fmt: skip
_BY_VALUE = {
    _aten.mul.Tensor, _aten.mul.Scalar, _aten.div.Tensor, _aten.div.Scalar, _aten.neg.default,
    _aten.pow.Tensor_Scalar, _aten.abs.default, _aten.sqrt.default,
}  # fmt: skip
"""Operations on each entry alone."""
_RUN: dict[Any, Callable[..., Any]] = {
    _aten._indices.default: lambda x: x.its_indices,  # noqa: SLF001
    _aten._values.default: lambda x: x.its_values,  # noqa: SLF001
    _aten.indices.default: lambda x: x.its_indices,
    _aten.values.default: lambda x: x.its_values,
    _aten._nnz.default: _num_entries,  # noqa: SLF001
    _aten.sparse_dim.default: _num_sparse,
    _aten.dense_dim.default: lambda x: x.dim() - _num_sparse(x),
    _aten.is_coalesced.default: lambda x: x.coalesced,
    _aten._coalesced_.default: _said_coalesced,
    _aten._coalesce.default: _coalesced,  # noqa: SLF001
    _aten.clone.default: _clone,
    _aten.detach.default: lambda x: _like(x, x.its_values),
    _aten.alias.default: lambda x: _like(x, x.its_values),
    _aten.add.Tensor: _added,
    _aten.add_.Tensor: _add,
    _aten.sparse_mask.default: _masked,
    _aten._to_dense.default: _dense,  # noqa: SLF001
    _aten._to_copy.default: _copied,  # noqa: SLF001
    _aten.zero_.default: _emptied,
    _aten.norm.ScalarOpt_dim: _norm,
    _aten.norm.Scalar: _norm,
    _aten._foreach_norm.Scalar: _norms,  # noqa: SLF001
    _aten.mm.default: _product,
    _aten._sparse_addmm.default: _add_product,  # noqa: SLF001
    _aten.addmm.default: _add_product,
    _aten.t.default: _turned,
    _aten.transpose.int: _turned,
}
