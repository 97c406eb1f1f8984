"""Parameters, gradients and optimizer states of a stage.

Source: ``megatron/core/distributed/param_and_grad_buffer.py``, ``core/optimizer/``.
"""

from brimful.megatron.layout import FLOAT_BYTES, HALF_BYTES, Layout


def layer_parameters(at: Layout) -> list[int]:
    """Elements of each parameter of a layer, on this process."""
    norm = [at.hidden] * (1 if at.is_rms else 2)
    qkv = at.queries + 2 * at.keys
    wide = at.ffn // at.tp * (2 if at.is_gated else 1)
    return [
        *norm, at.hidden * qkv, *([qkv] if at.qkv_bias else []),
        at.queries * at.hidden, *([at.hidden] if at.has_bias else []),
        *norm, at.hidden * wide, *([wide] if at.has_bias else []),
        at.ffn // at.tp * at.hidden, *([at.hidden] if at.has_bias else []),
    ]  # fmt: skip


def parameters(at: Layout) -> list[int]:
    """Elements of each parameter of the stage."""
    rows = at.vocab // at.tp * at.hidden
    found = layer_parameters(at) * at.layers_here
    if at.is_first:
        found += [rows, *([at.max_positions * at.hidden] if at.has_positions else [])]
    if at.is_last:
        found += [at.hidden] * (1 if at.is_rms else 2)
        found += [rows] if not at.is_tied or not at.is_first else []
    return found


def model_bytes(at: Layout) -> list[int]:
    """Bytes of parameters, gradients and fp32 copies, allocation by allocation.

    Gradients lie in one buffer, and under a distributed optimizer parameters too.
    """
    elements = parameters(at)
    num = sum(elements)
    of_parameter = HALF_BYTES if at.is_half else FLOAT_BYTES
    own = [num * of_parameter] if at.distributed_optimizer else [n * of_parameter for n in elements]
    copies = [n * FLOAT_BYTES for n in _updated(at)] if at.is_half else []
    return [*own, num * at.grads_bytes, *copies]


def moment_bytes(at: Layout) -> list[int]:
    """Bytes of the optimizer's two moments, which its first step makes."""
    return [n * FLOAT_BYTES for n in _updated(at) for _ in range(2)]


def _updated(at: Layout) -> list[int]:
    """Elements of what this process updates: all parameters, or its shard of them."""
    elements = parameters(at)
    if not at.distributed_optimizer:
        return elements
    return [-(-sum(elements) // (at.dp * at.cp // at.optimizer_instances))]
