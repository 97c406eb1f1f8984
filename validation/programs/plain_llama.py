"""A Llama in bf16 that random weights make, and its steps: what programs of optimizers share."""

from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

NUM_NUMBERS = 9
"""Batch, length, width, width of the MLP, layers, heads, key heads, width of a head, vocabulary."""
NUM_STEPS = 3
Make = Callable[[LlamaForCausalLM], torch.optim.Optimizer]


def train(numbers: list[str], make: Make) -> None:
    """Take steps.

    Args:
        numbers: As ``NUM_NUMBERS`` lists them.
        make: Makes the optimizer of the model.
    """
    batch, length, width, mlp, layers, heads, kv_heads, head_dim, vocabulary = map(int, numbers)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocabulary,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    optimizer = make(model)
    for _ in range(NUM_STEPS):
        ids = torch.randint(0, vocabulary, (batch, length), device="cuda")
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
