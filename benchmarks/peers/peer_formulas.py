"""Peers that are a formula in a paper or a script: stated anew, each with its source.

Bytes of one device. Where a formula says nothing of sharding, states are divided as ZeRO divides
them (Rajbhandari et al. 2020, arXiv:1910.02054, section 5): stage 1 the optimizer's, 2 gradients
too, 3 everything.
"""

from peer_rows import Ask

from brimful.rules.calculators import OVERHEAD, korthikanti_bytes

STATE_BYTES = (2, 2, 12)
"""Weights, gradients, optimizer with its fp32 master: 16-bit mixed training with AdamW."""
ZERO_BUCKET = 5e8
LIVE_PARAMETERS = 1e9
"""DeepSpeed's buffers in EleutherAI's calculator: its defaults, in parameters."""


def sharded_states(ask: Ask, each: tuple[float, float, float]) -> float:
    """Return bytes of weights, gradients and optimizer state, P (w / n3 + g / n2 + o / n1) / (t p).

    Args:
        ask: The run.
        each: Bytes of a parameter in each role.
    """
    shards = [ask.dp_shard if ask.zero >= stage else 1 for stage in (3, 2, 1)]
    own = ask.num_parameters / (ask.tp * ask.pp)
    return own * sum(size / num for size, num in zip(each, shards, strict=True))


def korthikanti_plus_states(ask: Ask) -> float:
    """Return 16 bytes a parameter and the activations of Korthikanti et al. 2022.

    L s b h (34 + 5 a s / h) / t without recomputing (equations 1 and 4); 34 L s b h / t where the
    attention core is recomputed (equation 6), which fused attention does by itself; 2 L s b h / t
    where everything is (section 5). Of a pipeline the first stage holds all L layers' worth.
    Source: arXiv:2205.05198.
    """
    if ask.checkpointing == "full":
        saved = 2.0 * ask.layers * ask.seq_len * ask.micro_batch * ask.hidden
    else:
        cores = ask.heads if ask.attention == "eager" and ask.checkpointing == "none" else 0
        saved = korthikanti_bytes(
            seq_len=ask.seq_len,
            batch=ask.micro_batch,
            hidden=ask.hidden,
            num_heads=cores,
            num_layers=ask.layers,
        )
    return sharded_states(ask, STATE_BYTES) + saved / ask.tp


def eleuther_calculator(ask: Ask) -> float:
    """Return what EleutherAI's calculator says, told everything that it can be told.

    P = 2 V h + h s + 8 h L + 2 h + 2 (1 + kv / a) L h^2 + m L h f; states w P / (t p), g P, 12 P,
    each over all N devices from its stage of ZeRO on; activations s b h L (16 w + 2 + (2 w + 1)
    a s / h), the second term without checkpointing only; buffers of 5e8 parameters from stage 1 on
    and 1e9 live ones in stage 3, of w bytes, with more than one device. w, the bytes of a value,
    are 2, or 4 in fp32; g those of a gradient; the 12 have no switch.
    Source: ``calc_mem`` of ``calc/calc_transformer_mem.py``, EleutherAI/cookbook 069ae2e.
    """
    h, layers, s = ask.hidden, ask.layers, ask.seq_len
    matrices = 3 if ask.gated else 2
    parameters = (
        2 * ask.vocab * h + h * s + 8 * h * layers + 2 * h
        + int(2 * (1 + ask.kv_heads / ask.heads) * layers * h * h)
        + matrices * layers * h * ask.intermediate
    )  # fmt: skip
    weight = 4 if ask.precision in {"fp32", "tf32"} else 2
    devices = ask.dp_shard * ask.dp_replicate * ask.tp * ask.pp
    n3, n2, n1 = (devices if ask.zero >= stage else 1 for stage in (3, 2, 1))
    states = weight * parameters / (ask.tp * ask.pp) / n3 + ask.gradient_bytes * parameters / n2
    states += 12 * parameters / n1
    buffers = 0.0
    if devices > 1:
        buffers = weight * (ZERO_BUCKET * (ask.zero >= 1) + LIVE_PARAMETERS * (ask.zero == 3))
    core = (2 * weight + 1) * ask.heads * s / h if ask.checkpointing == "none" else 0.0
    return states + buffers + s * ask.micro_batch * h * layers * (16 * weight + 2 + core)


def half_again(ask: Ask) -> float:
    """Return one and a half times what is held between steps; folklore, no source.

    What is held is counted in the run's own recipe, with its adapters: kinder than 16 B a
    parameter.
    """
    if ask.held_bytes is not None:
        return OVERHEAD * ask.held_bytes
    assert ask.state_bytes is not None
    each = (float(ask.weight_bytes), float(ask.gradient_bytes), ask.state_bytes)
    return OVERHEAD * sharded_states(ask, each)
