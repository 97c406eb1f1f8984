"""Tiny jobs, strategies and clusters that the tests of many packages share."""

from brimful.hardware.cluster import Cluster, Device, MatrixRates
from brimful.models.config import read_config
from brimful.values.job import Adapter, plain_job
from brimful.values.strategy import Strategy

TINY_LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
TINY_GPT2 = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_inner": 80,
    "vocab_size": 97,
    "n_positions": 512,
    "bos_token_id": None,
    "eos_token_id": None,
}
TRACED_PHI = {
    "model_type": "phi",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 312,
    "max_position_embeddings": 2048,
}
"""Of an architecture that no file here describes, so that its profile is traced."""
CONFIGS = {"llama": TINY_LLAMA, "gpt2": TINY_GPT2}


def make_model(architecture="llama", **changes):
    return read_config(f"tiny-{architecture}", {**CONFIGS[architecture], **changes})


def make_job(architecture="llama", **changes):
    fields = {
        "model": make_model(architecture),
        "seq_len": 24,
        "global_batch": 4,
        "num_steps": 5,
        "learning_rate": 1e-2,
        "seed": 3,
    }
    return plain_job(**{**fields, **changes})


def make_adapter(**changes):
    fields = {
        "rank": 4,
        "alpha": 8.0,
        "targets": ("all-linear",),
        "trained_modules": (),
        "dtype": "same",
        "base": "same",
        "upcast": "none",
        "input_requires_grad": False,
    }
    return Adapter(**{**fields, **changes})


def make_strategy(**changes):
    fields = {
        "micro_batch": 2,
        "activation_checkpointing": "none",
        "loss_chunks": 1,
        "attention": "sdpa",
    }
    return Strategy(**{**fields, **changes})


def make_cluster(kernels="cpu", **changes):
    fields = {
        "name": "local",
        "description": "a test's device",
        "kernels": kernels,
        "usable_bytes": 2**34,
        "capability": 9.0 if kernels == "cuda" else 0.0,
        "matrix_flops_per_s": MatrixRates(fp32=1e12, bf16=2e12),
        "memory_bytes_per_s": 1e11,
        "op_overhead_s": 1e-5,
        "calibrated": True,
        "source": "a test",
    }
    device = Device(**{**fields, **changes})
    return Cluster(name="local", device=device, num_devices=1, host_ram_bytes=0)
