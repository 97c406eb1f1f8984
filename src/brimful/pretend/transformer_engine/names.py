"""Enumerations of ``transformer_engine_torch``, and classes that are named where they are unused.

Source: ``transformer_engine/common/util/pybind_helper.h``, ``pytorch/csrc/extensions/pybind.cpp``,
``common/include/transformer_engine/{transformer_engine,fused_attn}.h``.
"""

import enum
import importlib.metadata
from typing import Any

import torch
from torch.torch_version import TorchVersion

from brimful.errors import UnsupportedError

DType = enum.IntEnum(
    "DType",
    {
        "kByte": 0,
        "kInt32": 2,
        "kFloat32": 4,
        "kFloat16": 5,
        "kBFloat16": 6,
        "kFloat8E4M3": 7,
        "kFloat8E5M2": 8,
        "kFloat4E2M1": 10,
    },
)
TORCH_TYPES = {
    0: torch.uint8,
    2: torch.int32,
    4: torch.float32,
    5: torch.float16,
    6: torch.bfloat16,
    7: torch.uint8,
    8: torch.uint8,
    10: torch.uint8,
}
"""What a tensor of each type is made of."""
_GEMMS = ("INPUT", "WEIGHT", "OUTPUT")
_LAYOUTS = """SB3HD SBH3D SBHD_SB2HD SBHD_SBH2D SBHD_SBHD_SBHD BS3HD BSH3D BSHD_BS2HD BSHD_BSH2D
BSHD_BSHD_BSHD T3HD TH3D THD_T2HD THD_TH2D THD_THD_THD SBHD_BSHD_BSHD BSHD_SBHD_SBHD THD_BSHD_BSHD
THD_SBHD_SBHD Paged_KV_BSHD_BSHD_BSHD Paged_KV_BSHD_SBHD_SBHD Paged_KV_SBHD_BSHD_BSHD
Paged_KV_SBHD_SBHD_SBHD Paged_KV_THD_BSHD_BSHD Paged_KV_THD_SBHD_SBHD BHSD_BHSD_BHSD
QKV_Layout_NOT_SET"""
_ENUMS = {
    "NVTE_Bias_Type": "NO_BIAS PRE_SCALE_BIAS POST_SCALE_BIAS ALIBI",
    "NVTE_Mask_Type": (
        "NO_MASK PADDING_MASK CAUSAL_MASK PADDING_CAUSAL_MASK CAUSAL_BOTTOM_RIGHT_MASK "
        "PADDING_CAUSAL_BOTTOM_RIGHT_MASK"
    ),
    "NVTE_Softmax_Type": "VANILLA_SOFTMAX OFF_BY_ONE_SOFTMAX LEARNABLE_SOFTMAX",
    "NVTE_QKV_Format": (
        "BSHD SBHD THD SBHD_2BSHD BSHD_2SBHD THD_2BSHD THD_2SBHD BHSD QKV_Format_NOT_SET"
    ),
    "NVTE_QKV_Layout": _LAYOUTS,
}
"""Names after ``NVTE_``, of each enumeration."""
_BACKENDS = {"NVTE_No_Backend": -1, "NVTE_F16_arbitrary_seqlen": 1, "NVTE_FP8": 2}
_SHORT = {"NVTE_F16_max512_seqlen": 0}
"""A kernel of attention that went with 2.16: from 2.20 on Python refuses names it does not have."""
_WITHOUT_SHORT = (2, 16)
_SCALINGS = {
    "NVTE_DELAYED_TENSOR_SCALING": 0,
    "NVTE_MXFP8_1D_SCALING": 1,
    "NVTE_BLOCK_SCALING_1D": 2,
    "NVTE_BLOCK_SCALING_2D": 3,
    "NVTE_NVFP4_1D_SCALING": 4,
    "NVTE_INVALID_SCALING": 100,
}
_PLAIN_ENUMS = {
    "NVTERoutingMapFormat": ("BYTEMAP", "BITMAP_U8"),
    "NVTEQBHistogramMode": ("TWO_KERNEL", "FUSED_ATOMIC"),
    "Float8BlockScaleTensorFormat": ("GEMM_READY", "COMPACT", "INVALID"),
    "CommOverlapType": ("RS", "AG"),
    "CommOverlapAlgo": (
        "BULK_OVERLAP_AG", "BULK_OVERLAP_RS", "SPLIT_PIPELINED_AG_P2P", "SPLIT_PIPELINED_RS",
        "SPLIT_PIPELINED_RS_P2P", "ATOMIC_GEMM_RS", "ATOMIC_GEMM_AG_P2P", "ATOMIC_GEMM_RS_P2P",
        "EXTERNAL_BULK_OVERLAP_AG",
    ),
    "FP8FwdTensors": tuple(f"GEMM{i}_{what}" for i in (1, 2, 3) for what in _GEMMS),
    "FP8BwdTensors": tuple(f"GRAD_{what}{i}" for i in (1, 2, 3) for what in ("OUTPUT", "INPUT")),
}  # fmt: skip


class _Overlap:
    """Communication that overlaps with products, in buffers outside of PyTorch's allocator."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise UnsupportedError(
            "Transformer Engine's user buffers are not simulated: their memory is not PyTorch's; "
            "leave out what overlaps tensor parallelism's communication (--tp-comm-overlap)"
        )


class FP8TensorMeta:
    """Scales and amaxes of delayed scaling, which Python fills."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.scale = torch.Tensor()
        self.scale_inv = torch.Tensor()
        self.amax_history = torch.Tensor()


def _backends() -> dict[str, int]:
    """Return the kernels of fused attention that the installed version names."""
    try:
        version = TorchVersion(importlib.metadata.version("transformer-engine"))
    except importlib.metadata.PackageNotFoundError:
        return _BACKENDS
    return _BACKENDS if version >= _WITHOUT_SHORT else {**_BACKENDS, **_SHORT}


NAMES: dict[str, Any] = {
    "DType": DType,
    "NVTE_Fused_Attn_Backend": enum.IntEnum("NVTE_Fused_Attn_Backend", _backends()),
    "NVTEScalingMode": enum.IntEnum("NVTEScalingMode", _SCALINGS),
    "FP8TensorMeta": FP8TensorMeta,
    **{
        name: enum.IntEnum(name, [f"NVTE_{each}" for each in names.split()], start=0)
        for name, names in _ENUMS.items()
    },
    **{name: enum.IntEnum(name, names, start=0) for name, names in _PLAIN_ENUMS.items()},
    **{
        name: type(name, (_Overlap,), {})
        for name in ("CommOverlap", "CommOverlapP2P", "CommOverlapHelper", "CommOverlapCore")
    },
}
