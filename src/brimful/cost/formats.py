"""How weights can be held that are loaded to write text, and who makes each format."""

from typing import Literal

Compute = Literal["fp32", "tf32", "bf16", "fp16"]
WeightsFormat = Literal[
    "fp32", "tf32", "bf16", "fp16", "int8", "llm-int8", "int4", "int8-dynamic", "int4-dynamic",
    "nf4", "nf4-double", "mxfp4",
]  # fmt: skip
COMPUTE_BYTES: dict[Compute, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""Of one number, in weights that are not quantised, in activations and in the cache."""
FORMATS: dict[WeightsFormat, str] = {
    "fp32": "as they are",
    "tf32": "as fp32; only products differ",
    "bf16": "as they are",
    "fp16": "as they are",
    "int8": "torchao's Int8WeightOnlyConfig: a byte a weight, a scale and a zero point a row",
    "llm-int8": "bitsandbytes' load_in_8bit: a byte a weight, a scale a row",
    "int4": "torchao's Int4WeightOnlyConfig: half a byte a weight, scale and zero for 128",
    "int8-dynamic": "of brimful convert --to int8: a byte a weight, a scale and a zero a row",
    "int4-dynamic": "of brimful convert --to int4: a byte a weight, both for 32 of them",
    "nf4": "bitsandbytes' load_in_4bit with nf4: half a byte a weight, a scale for 64",
    "nf4-double": "the same with bnb_4bit_use_double_quant: scales in a byte each",
    "mxfp4": "stacked experts as gpt-oss is published: half a byte a weight, a scale byte for 32",
}
"""Every format, and who makes it how."""
DYNAMIC: frozenset[WeightsFormat] = frozenset({"int8-dynamic", "int4-dynamic"})
"""Formats whose inputs are rounded token by token; torchao holds each of their int4 in a byte."""
BITSANDBYTES: frozenset[WeightsFormat] = frozenset({"llm-int8", "nf4", "nf4-double"})
"""Formats that bitsandbytes makes, of GPT-2's ``Conv1D`` as well; torchao knows ``Linear`` only."""
SERVED: frozenset[WeightsFormat] = frozenset({"mxfp4"})
"""Formats of experts alone, whose kernels engines bring: prompts are read in chunks, and blocks
with a window keep no more than that of a text."""
CHUNK = 2048
"""Tokens that engines read in one forward: vLLM's ``max_num_batched_tokens`` on most cards."""
