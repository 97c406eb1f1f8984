"""LLM.int8(): a byte a weight, products in int8 but for the outliers among the inputs.

By bitsandbytes, with the paper's threshold. On a CPU it widens the weight instead and multiplies
in the type of the inputs. On both it keeps the inputs of every layer until backward, checkpointed
or not, and widens biases to the type of the inputs: that is the library's, and is counted.
"""

import logging
from typing import Any

import torch
from torch import nn

from brimful.build.quantize.base import Format, frozen, require_bitsandbytes

THRESHOLD = 6.0
"""Inputs this large are multiplied in fp16: the paper's, and the default of transformers."""
_CHATTY = "bitsandbytes.autograd._functions"
"""Says at every single product that bf16 inputs are cast to fp16."""


def _linear(
    in_features: int,
    out_features: int,
    bias: bool,  # noqa: FBT001 - a field of Format's
    dtype: torch.dtype,
) -> nn.Linear:
    bitsandbytes = require_bitsandbytes()
    logging.getLogger(_CHATTY).setLevel(logging.ERROR)
    with torch.device("meta"):
        layer: nn.Linear = bitsandbytes.nn.Linear8bitLt(
            in_features, out_features, bias=bias, has_fp16_weights=False, threshold=THRESHOLD
        )
    layer.compute_dtype = dtype
    return layer


def _fill(layer: Any, weight: torch.Tensor) -> None:
    """Quantise as ``Int8Params`` does, into a plain parameter: fake tensors take no subclass."""
    rows, scale, _ = require_bitsandbytes().functional.int8_vectorwise_quant(
        weight.contiguous().to(torch.float16)
    )
    layer.weight = frozen(rows)
    layer.weight.CB = layer.weight.SCB = None
    layer.state.CB, layer.state.SCB = layer.weight.data, scale
    layer.register_buffer("row_absmax", scale, persistent=False)


def _dequantize(layer: Any) -> torch.Tensor:
    weight: torch.Tensor = require_bitsandbytes().functional.int8_vectorwise_dequant(
        layer.weight.data, layer.state.SCB
    )
    return weight


LLM_INT8 = Format(_linear, _fill, _dequantize, None)
