"""Shapes of an architecture's parameters, for optimizers whose state hangs on more than a count.

In the order of ``Module.parameters()``, since buckets of masters are filled in that order. Tested
equal to what ``transformers`` builds.
"""

from collections.abc import Callable
from itertools import chain

from brimful.models.spec import ModelSpec

Shape = tuple[int, ...]


def parameter_shapes(spec: ModelSpec) -> list[Shape]:
    """List the shape of every parameter, a tied one once."""
    return _SHAPES[spec.model_type](spec)


def _llama(spec: ModelSpec) -> list[Shape]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attention_bias = spec.hf_config.get("attention_bias", False)
    mlp_bias = spec.hf_config.get("mlp_bias", False)
    block = [
        *_linear(hidden, query, bias=attention_bias),
        *_linear(hidden, key, bias=attention_bias),
        *_linear(hidden, key, bias=attention_bias),
        *_linear(query, hidden, bias=attention_bias),
        *_linear(hidden, inner, bias=mlp_bias),
        *_linear(hidden, inner, bias=mlp_bias),
        *_linear(inner, hidden, bias=mlp_bias),
        (hidden,),
        (hidden,),
    ]
    embedding: Shape = (spec.vocab_size, hidden)
    head = [] if spec.tied_embeddings else [embedding]
    return [embedding, *chain(*[block] * spec.num_layers), (hidden,), *head]


def _gpt2(spec: ModelSpec) -> list[Shape]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    norm: list[Shape] = [(hidden,), (hidden,)]
    widths = ((hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden))
    qkv, out, up, down = (_transposed(into, outof) for into, outof in widths)
    block = [*norm, *qkv, *out, *norm, *up, *down]
    embedding: Shape = (spec.vocab_size, hidden)
    head = [] if spec.tied_embeddings else [embedding]
    positions: Shape = (spec.max_seq_len, hidden)
    return [embedding, positions, *chain(*[block] * spec.num_layers), *norm, *head]


def _linear(num_inputs: int, num_outputs: int, *, bias: bool) -> list[Shape]:
    return [(num_outputs, num_inputs), *([(num_outputs,)] if bias else [])]


def _transposed(num_inputs: int, num_outputs: int) -> list[Shape]:
    """GPT-2 holds its matrices so; the bias is that of the outputs all the same."""
    return [(num_inputs, num_outputs), (num_outputs,)]


_SHAPES: dict[str, Callable[[ModelSpec], list[Shape]]] = {"llama": _llama, "gpt2": _gpt2}
