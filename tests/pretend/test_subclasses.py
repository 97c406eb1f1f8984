"""Classes of tensors that programs bring."""

import pytest
import torch

from brimful import pretend

pytestmark = pytest.mark.torch


class Handing(torch.Tensor):
    """Hands operations on to the tensor that it is made of, as Transformer Engine's do."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        inner = args[0].inner
        return inner.__torch_dispatch__(func, types, [inner, *args[1:]], kwargs or {})


def test_a_class_hands_an_operation_on_to_its_own_tensor():
    with pretend.gpu("h100-80gb"):
        whole = Handing(torch.empty(8, 4, device="cuda"))
        assert whole[2:5].shape == (3, 4)
