"""The programs that simulators run: models of several kinds, with and without checkpointing."""

from typing import Any, NamedTuple

NUM_STEPS = 2


class Program(NamedTuple):
    """Two steps of a model on plain PyTorch.

    Attributes:
        model: Name of the registry; empty where ``fields`` say what it is.
        fields: Configuration of ``transformers``.
        dtype: Of parameters and everything else.
        batch: Sequences.
        seq_len: Tokens of each.
        checkpointing: Whether every block is recomputed.
        world: Devices under FSDP2; 1: none.
        flags: The job as ``brimful simulate`` takes it; empty where it is not asked.
        is_small: Whether it is run for real, too.
    """

    model: str
    fields: dict[str, Any] | None
    dtype: str
    batch: int
    seq_len: int
    checkpointing: bool
    world: int
    flags: tuple[str, ...]
    is_small: bool


SMALL_LLAMA = {
    "model_type": "llama", "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6,
    "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 8192,
}  # fmt: skip
SMALL_GPT2 = {"model_type": "gpt2", "n_embd": 384, "n_layer": 6, "n_head": 6, "vocab_size": 8192}
SMALL_MIXTURE = {
    "model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 4096,
    "experts_implementation": "grouped_mm",
}  # fmt: skip
MIXTURE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "vocab_size": 151936, "experts_implementation": "grouped_mm",
}  # fmt: skip


def _registered(name: str, batch: int, seq_len: int, *, checkpointing: bool) -> Program:
    flags = (
        name, "--gpus", "h200", "--precision", "bf16", "--seq-len", str(seq_len),
        "--global-batch", str(batch), "--micro-batch", str(batch),
        "--activation-checkpointing", "full" if checkpointing else "none",
    )  # fmt: skip
    return Program(name, None, "bfloat16", batch, seq_len, checkpointing, 1, flags, is_small=False)


def _small(fields: dict[str, Any], dtype: str, *, checkpointing: bool = False) -> Program:
    return Program("", fields, dtype, 4, 256, checkpointing, 1, (), is_small=True)


PROGRAMS = {
    "small Llama, fp32": _small(SMALL_LLAMA, "float32"),
    "small Llama, fp32, checkpointed": _small(SMALL_LLAMA, "float32", checkpointing=True),
    "small Llama, bf16": _small(SMALL_LLAMA, "bfloat16"),
    "small GPT-2, fp32": _small(SMALL_GPT2, "float32"),
    "small GPT-2, fp32, checkpointed": _small(SMALL_GPT2, "float32", checkpointing=True),
    "small mixture, bf16": _small(SMALL_MIXTURE, "bfloat16"),
    "GPT-2": _registered("gpt2", 4, 1024, checkpointing=False),
    "GPT-2, checkpointed": _registered("gpt2", 4, 1024, checkpointing=True),
    "Llama 3.2 1B": _registered("llama-3.2-1b", 1, 4096, checkpointing=False),
    "Llama 3.2 1B, checkpointed": _registered("llama-3.2-1b", 1, 4096, checkpointing=True),
    "Llama 3.1 8B": _registered("llama-3.1-8b", 1, 4096, checkpointing=False),
    "Qwen3 30B-A3B, 8 of 48 blocks": Program(
        "", MIXTURE, "bfloat16", 1, 4096, False, 1, (), is_small=False
    ),
    "Llama 3.1 8B, FSDP2 on 8": _registered("llama-3.1-8b", 1, 4096, checkpointing=False)._replace(
        world=8, flags=()
    ),
}
QUICK = ("small Llama, fp32", "small Llama, fp32, checkpointed")
