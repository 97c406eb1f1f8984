"""PyTorch's fake mode, for programs whose operations repeat thousands of times.

A fake mode remembers what an operation made of tensors of given sizes, and the key of that memory
is a third of the time that a simulation takes: PyTorch's walks dataclasses field by field. What
distinguishes two calls is the same here, written down in one tuple per tensor.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_WHOLE = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout)


class FakeMode(FakeTensorMode):  # type: ignore[misc]  # torch is untyped to mypy
    """A fake mode that makes no tensor on the device: modules of the user's have constants."""

    avoid_device_init = True

    def _prep_args_for_hash(
        self, result: list[Any], args: Any, state: Any, id_hashed_objects: list[Any]
    ) -> None:
        """Append to a key what distinguishes arguments; see PyTorch's own for what is unusual.

        Source: ``FakeTensorMode._prep_args_for_hash`` and ``extract_tensor_metadata``. The memory
        format, which stands there too, follows from sizes and strides.
        """
        found = None if isinstance(args, dict) else self._plain_key(args)
        if found is None:
            super()._prep_args_for_hash(result, args, state, id_hashed_objects)
        else:
            result.append(found)

    def _plain_key(self, args: Iterable[Any]) -> tuple[Any, ...] | None:
        """Return the key of arguments of which none is unusual; None where one is."""
        found: list[Any] = [type(args)]
        for value in args:
            kind = type(value)
            if kind is FakeTensor:
                key = self._tensor_key(value)
            elif kind is list or kind is tuple:
                key = self._plain_key(value)
            else:
                key = (kind, value) if kind in _WHOLE or kind is torch.memory_format else None
            if key is None:
                return None
            found.append(key)
        return tuple(found)

    def _tensor_key(self, tensor: FakeTensor) -> tuple[Any, ...] | None:
        unusual = (
            tensor.fake_mode is not self
            or tensor.constant is not None
            or tensor.layout is not torch.strided
            or tensor._has_symbolic_sizes_strides  # noqa: SLF001 - what PyTorch itself asks
        )
        if unusual:
            return None
        return (
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            tensor.storage_offset(),
            tensor.untyped_storage().nbytes(),
            tensor.device,
            tensor.requires_grad,
            tensor.is_conj(),
            tensor.is_neg(),
            tensor.is_inference(),
            tensor.is_quantized,
        )
