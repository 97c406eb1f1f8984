"""nanotron's YAML read back: which flags of ``brimful plan`` say the same.

A file describes its model by its sizes (``nanotron_models``), and shares it by replicas, tensors
and stages; its first stage of ZeRO is all that shards.

Source: ``src/nanotron/config/{config,parallelism_config}.py``, ``helpers.py``, ``optim/{zero,
gradient_accumulator}.py`` and ``parallel/context.py`` of nanotron's commit 2411b022, whose defaults
stand in for what a file does not say.
"""

from pathlib import Path
from typing import Any

from brimful.errors import InputError, UnsupportedError
from brimful.export.leaves import Leaves, Read
from brimful.export.nanotron_models import SECTION, name_of
from brimful.export.trainer_leaves import numbered, rule_named
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS

PROGRAM = "nanotron"
_DEGREES, _TOKENS, _MODEL, _OPTIMIZER = "parallelism", "tokens", "model", "optimizer"
_RULE, _RATES = f"{_OPTIMIZER}.optimizer_factory", f"{_OPTIMIZER}.learning_rate_scheduler"
_SCATTERS = "reduce_scatter"
_ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
_ATTENTIONS = {"sdpa": "sdpa", "flex_attention": "flex"}
_RECIPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_WIDE = "accumulate_grad_in_fp32"
_WIDE_BYTES = 4
"""A parameter's gradient in fp32, which is kept from step to step."""
_SPEED_ALONE = ("tp_linear_async_communication",)


def is_nanotron(content: dict[str, Any]) -> bool:
    """Whether a file describes its model by sizes, beside degrees or a micro-batch."""
    model, degrees, tokens = (content.get(each) for each in (_MODEL, _DEGREES, _TOKENS))
    return (
        isinstance(model, dict)
        and isinstance(model.get(SECTION), dict)
        and (isinstance(degrees, dict) or isinstance(tokens, dict))
    )


def model_of(path: Path, content: dict[str, Any]) -> str:
    """Return the name that stands for the model which a file describes."""
    return name_of(path, content)


def read_nanotron(
    path: Path, content: dict[str, Any], *, num_devices: int, num_layers: int
) -> Read:
    """Read a file.

    Raises FileFormatError: a value is of another type. Raises InputError: its numbers do not go
    together. Raises UnsupportedError: this version plans nothing like it.
    """
    del num_layers
    leaves = Leaves(path, content, PROGRAM)
    attention = leaves.take(f"{_MODEL}.{SECTION}._attn_implementation", str, "")
    leaves.say("attention", _ATTENTIONS.get(attention), f"{_MODEL}.{SECTION}._attn_implementation")
    described = f"{_MODEL}.{SECTION}."
    leaves.rest = {
        key: value
        for key, value in leaves.rest.items()
        if value is not None and not key.startswith(described)
    }
    leaves.take(f"{_MODEL}.make_vocab_size_divisible_by", int)
    leaves.say("task", "causal-lm", "(nanotron predicts tokens)")
    leaves.say("method", "full", "(nanotron has no adapters)")
    leaves.say("packing", "wrapped", "(nanotron cuts one text into rows)")
    copies, parts = _degrees(leaves, num_devices)
    _batches(leaves, copies, parts)
    _precision(leaves)
    _update(leaves)
    key = f"{_DEGREES}.recompute_layer"
    recomputes = leaves.take(key, bool, False)
    leaves.say("activation_checkpointing", ["full" if recomputes else "none"], key)
    leaves.notes.append("nanotron's fused norms and rotary embeddings keep less than is planned")
    usual = {
        "loss_chunks": 1, "fused_kernels": "none", "compile": "none", "offload": "none",
        "optimizer_in_backward": False,
    }  # fmt: skip
    for flag, value in usual.items():
        leaves.say(flag, value, f"({PROGRAM} has none)")
    return leaves.read()


def _degree(leaves: Leaves, name: str, *, is_needed: bool = False) -> int:
    key = f"{_DEGREES}.{name}"
    value: int = leaves.take(key, int, 0 if is_needed else 1)
    if value < 1:
        raise InputError(f"{leaves.path}: {key} is {value or 'not there'}; give 1 or more")
    return value


def _degrees(leaves: Leaves, num_devices: int) -> tuple[int, int]:
    """Take how devices are used.

    Returns how many share a batch, and in how many parts each row is cut among them.
    """
    dp, tp, pp = (_degree(leaves, name, is_needed=True) for name in ("dp", "tp", "pp"))
    cp, ep = (_degree(leaves, f"{kind}_parallel_size") for kind in ("context", "expert"))
    if dp * tp * pp * cp != num_devices:
        cut = f" x context {cp}" if cp > 1 else ""
        raise InputError(
            f"{leaves.path}: dp {dp} x tp {tp} x pp {pp}{cut} are {dp * tp * pp * cp} devices, and "
            f"the plan is for {num_devices}; give --gpus or correct it"
        )
    for flag, value in (("tp", tp), ("pp", pp)):
        leaves.say(flag, value, f"{_DEGREES}.{flag}")
    leaves.say("ep", ep, f"{_DEGREES}.expert_parallel_size")
    _sharding(leaves, dp, cp)
    engine = leaves.take(f"{_DEGREES}.pp_engine", str, "afab")
    if pp > 1 and engine not in _ENGINES:
        raise UnsupportedError(
            f"{leaves.path}: {_DEGREES}.pp_engine={engine} is not planned by this version; use "
            f"{' or '.join(_ENGINES)}"
        )
    if pp > 1:
        leaves.say("pp_schedule", _ENGINES[engine], f"{_DEGREES}.pp_engine")
    _tensors(leaves, tp)
    return dp * cp, cp


def _sharding(leaves: Leaves, dp: int, cp: int) -> None:
    """Take the stage of ZeRO, of which nanotron has the first: over replicas, of cut rows too."""
    key = f"{_OPTIMIZER}.zero_stage"
    asked = leaves.take(key, int, 0)
    if asked not in {0, 1}:
        raise InputError(
            f"{leaves.path}: {key} is {asked}, and nanotron shards what stage 1 does, the "
            f"optimizer's state; give 0 or 1"
        )
    stage = asked if dp > 1 else 0
    leaves.say("zero", stage, key)
    leaves.say("dp_shard", dp if stage else 1, key)
    leaves.say("dp_replicate", cp if stage else dp * cp, f"{_DEGREES}.dp")


def _tensors(leaves: Leaves, tp: int) -> None:
    """Take how tensors are shared: with their tokens, or with whole ones on every device."""
    key = f"{_DEGREES}.tp_mode"
    mode = leaves.take(key, str, "all_reduce")
    again = leaves.take(f"{_DEGREES}.tp_recompute_allgather", bool, True)
    for name in _SPEED_ALONE:
        leaves.take(f"{_DEGREES}.{name}", bool)
    if tp == 1:
        return
    if mode.lower() != _SCATTERS:
        leaves.stand_ins.append(
            f"{key}={mode} keeps norms and residuals of all tokens on each GPU: planned with "
            f"tokens shared (REDUCE_SCATTER), which takes less"
        )
    elif again:
        leaves.notes.append(
            "tp_recompute_allgather gathers tokens anew in backward: planned as kept, which takes "
            "more"
        )


def _batches(leaves: Leaves, copies: int, parts: int) -> None:
    """Take batches and how long rows are; where a row is cut among devices, each part is a row."""
    each, times, length, steps = (
        leaves.take(f"{_TOKENS}.{name}", int)
        for name in ("micro_batch_size", "batch_accumulation_per_replica", "sequence_length",
                     "train_steps")
    )  # fmt: skip
    for name, value in (
        ("micro_batch_size", each), ("batch_accumulation_per_replica", times),
        ("sequence_length", length),
    ):  # fmt: skip
        if value is not None and value < 1:
            raise InputError(f"{leaves.path}: {_TOKENS}.{name} is {value}; give 1 or more")
    leaves.say("micro_batch", each, f"{_TOKENS}.micro_batch_size")
    if each is not None:
        key = f"{_TOKENS}.batch_accumulation_per_replica"
        leaves.say("global_batch", each * (times or 1) * copies, key)
    leaves.say("seq_len", length, f"{_TOKENS}.sequence_length")
    leaves.cut_rows(parts, f"{_DEGREES}.context_parallel_size")
    leaves.say("steps", steps, f"{_TOKENS}.train_steps")
    leaves.say("seed", leaves.take("general.seed", int), "general.seed")


def _precision(leaves: Leaves) -> None:
    """Take the type of weights, and whether the optimizer has copies of them in fp32."""
    key, wide = f"{_MODEL}.dtype", f"{_OPTIMIZER}.{_WIDE}"
    dtype = leaves.take(key, str, "bfloat16").removeprefix("torch.")
    if dtype not in _RECIPES:
        raise UnsupportedError(
            f"{leaves.path}: {key}={dtype} is not planned by this version; use "
            f"{', '.join(_RECIPES)}"
        )
    recipe = _RECIPES[dtype]
    if leaves.take(wide, bool, False) and recipe != "fp32":
        recipe = f"{recipe}-master"
        leaves.beside_bytes = _WIDE_BYTES
        leaves.beside = f"gradients in fp32 ({_WIDE})"
    leaves.say("precision", recipe, key if recipe == _RECIPES[dtype] else wide)


def _update(leaves: Leaves) -> None:
    """Take the rule, its numbers and its rates."""
    name = leaves.take(f"{_RULE}.name", str, DEFAULT)
    rule = rule_named(name)
    if rule is None:
        raise UnsupportedError(
            f"{leaves.path}: {_RULE}.name={name} is none of this version's; leave it out and give "
            f"--optimizer"
        )
    is_plain = OPTIMIZERS[rule].is_momentum if rule in OPTIMIZERS else False
    if not leaves.take(f"{_RULE}.torch_adam_is_fused", bool, True) and rule == DEFAULT:
        rule = rule_named(f"{DEFAULT}_torch")
    leaves.say("optimizer", rule, f"{_RULE}.name")
    numbers = {
        f"{_RULE}.adam_beta1": "beta1", f"{_RULE}.adam_beta2": "beta2",
        f"{_RULE}.adam_eps": "epsilon", f"{_OPTIMIZER}.weight_decay": "weight_decay",
        f"{_RATES}.learning_rate": "learning_rate",
    }  # fmt: skip
    for key, flag in numbers.items():
        leaves.say(flag, _number(leaves, key), key)
    if is_plain:
        leaves.say("beta1", 0.0, f"{_RULE}.name")
    leaves.say("clip", _number(leaves, f"{_OPTIMIZER}.clip_grad", 0.0), f"{_OPTIMIZER}.clip_grad")
    warmup, key = f"{_RATES}.lr_warmup_steps", f"{_RATES}.lr_decay_style"
    leaves.say("warmup_steps", leaves.take(warmup, int, 0), warmup)
    kind = leaves.take(key, str, "linear")
    leaves.say("schedule", kind if kind in {"linear", "cosine"} else None, key)
    leaves.take(f"{_RATES}.lr_warmup_style", str)
    own = [
        leaves.rest.pop(f"{_RATES}.{name}", None)
        for name in ("lr_decay_steps", "lr_decay_starting_step", "min_decay_lr")
    ]
    if any(own) or kind not in {"linear", "cosine"}:
        leaves.notes.append("the curve of its rates is another than the plan's: as much memory")


def _number(leaves: Leaves, key: str, default: float | None = None) -> float | None:
    """Take a number, which YAML 1.1 may leave as text (``1e-8``)."""
    leaves.rest |= {key: numbered(leaves.rest[key])} if key in leaves.rest else {}
    value: float | None = leaves.take(key, float, default)
    return value
