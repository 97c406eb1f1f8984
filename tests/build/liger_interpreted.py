"""Train tiny programs with and without Liger's kernels, which Triton's interpreter runs on a CPU.

A script, to be run with ``TRITON_INTERPRET=1``, which Triton reads while it is imported: prints the
losses and gradient norms of every case that is named, as JSON.

The interpreter of Triton 3.9 hands floats to a kernel as Python's, where a GPU has tensors, and has
no functions of CUDA's library: so much is put in its place (``fit``), in the interpreter alone.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

sys.path.insert(0, str(Path(__file__).parents[1]))

from brimful.build.assemble import build_program
from brimful.build.batch import IGNORE_INDEX, Batch
from brimful.build.step import train_step
from brimful.models.config import read_config
from brimful.techniques.runnable import check_strategy
from other_decoders import COMMON, PLAIN, make_decoder
from samples import make_adapter, make_job, make_model, make_strategy

LORA = {"method": "lora", "adapter": make_adapter()}
TRAINED = {"method": "lora", "adapter": make_adapter(trained_modules=("embed_tokens", "lm_head"))}
SIZES = {"vocab_size": 300, "num_hidden_layers": 2}
"""Over hidden states of 32: ten chunks of the loss at most."""
CASES = {
    "llama": ("llama", {}, {}),
    "llama full": ("llama", {}, {"activation_checkpointing": "full"}),
    "llama lora": ("llama", LORA, {}),
    "llama trained": ("llama", TRAINED, {}),
    "llama fp16": ("llama", {"precision": "fp16"}, {}),
    "llama offloaded": ("llama", {}, {"offload": "optimizer"}),
    "qwen3 full:1": ("qwen3", {}, {"activation_checkpointing": "full:1"}),
    "gemma2": ("gemma2", {}, {"attention": "eager"}),
    "phi3": ("phi3", {}, {}),
    "granite": ("granite", {}, {}),
    **{
        name: (name, {}, {})
        for name in ("gemma", "glm4", "mistral", "ministral", "olmo2", "olmo3", "qwen2", "smollm3")
    },
    "gemma3_text": ("gemma3_text", {}, {"attention": "eager"}),
}
NUM_STEPS = 2
WINDOWED = {"sliding_window": 7}
OTHERS = {
    "gemma": COMMON,
    "gemma3_text": {**COMMON, **WINDOWED, "query_pre_attn_scalar": 8},
    "glm4": COMMON,
    "ministral": {**COMMON, **WINDOWED},
    "olmo3": {**PLAIN, **WINDOWED},
    "smollm3": PLAIN,
}
"""Decoders that no other test has."""


def fit():
    """Give the interpreter what Liger's kernels ask of a GPU."""
    from liger_kernel.ops import cross_entropy, geglu, rms_norm

    before = interpreter._implicit_cvt

    def converted(argument):
        if isinstance(argument, float):
            handle = interpreter.TensorHandle(np.array([argument], np.float32), tl.float32)
            return tl.tensor(handle, tl.float32)
        return before(argument)

    interpreter._implicit_cvt = converted
    rms_norm.rsqrt = lambda x: 1 / tl.sqrt(x)
    geglu.tanh = cross_entropy.tanh = lambda x: 1 - 2 / (tl.exp(2 * x) + 1)


def model_of(architecture):
    """Describe a tiny decoder."""
    if architecture in OTHERS:
        config = {"model_type": architecture, **OTHERS[architecture], **SIZES}
        return read_config(f"tiny-{architecture}", config)
    make = make_model if architecture == "llama" else make_decoder
    return make(architecture, **SIZES)


def take(name, fused_kernels):
    """Train some steps; return the loss and the norm of each."""
    architecture, job, strategy = CASES[name]
    model = model_of(architecture)
    job = make_job(**{"model": model, "seq_len": 6, "global_batch": 2, **job})
    strategy = {"micro_batch": 1, **strategy, "fused_kernels": fused_kernels}
    strategy = check_strategy(job, make_strategy(**strategy))
    rows = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.vocab_size, (job.global_batch, job.seq_len), generator=rows)
    labels = ids.clone()
    labels[0, :3] = IGNORE_INDEX
    batches = list(map(Batch, ids.split(1), labels.split(1)))
    num_targets = int((labels != IGNORE_INDEX).sum())
    program = build_program(job, strategy, torch.device("cpu"))
    steps = [
        train_step(program, batches, num_targets=num_targets, learning_rate=1e-3)
        for _ in range(NUM_STEPS)
    ]
    return [(float(step.loss), float(step.grad_norm)) for step in steps]


if __name__ == "__main__":
    torch.set_num_threads(1)
    fit()
    found = {name: [take(name, each) for each in ("none", "liger")] for name in sys.argv[1:]}
    print(json.dumps(found))
