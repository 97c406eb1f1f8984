"""What torchtune's files say of an update: its rule, rates and length.

Source: ``recipes/*.py`` and ``torchtune/training/lr_schedulers.py`` of torchtune's commit bd2a0fc7;
``torch/optim`` of PyTorch 2.13, ``bitsandbytes/optim`` of 0.48 and ``torchao/optim`` of 0.18, whose
AdamW have the same defaults.
"""

import math
from typing import Any

from brimful.errors import FileFormatError, UnsupportedError
from brimful.export.deepspeed import COSINE_ENDS_AT
from brimful.export.leaves import Leaves
from brimful.export.trainer_leaves import numbered, rule_named
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS

_RULE = "optimizer._component_"
_ON_HOST, _ITS_RULE = "CPUOffloadOptimizer", "optimizer.optimizer_class"
_TORCH, _BITSANDBYTES = "torch.optim.", "bitsandbytes.optim."
_WIDE = frozenset({"AdamW", "Adam", "AdamW32bit"})
"""Of bitsandbytes: rules whose moments are fp32 whatever the weights are, and that are no paged
one, which is run."""
_USUAL = {"weight_decay": 0.01, "eps": 1e-8, "betas": [0.9, 0.999]}
"""AdamW's, in all three libraries."""
_SCHEDULE, _WARMUP = "lr_scheduler._component_", "lr_scheduler.num_warmup_steps"
_CLIP, _EACH, _EPOCHS = "clip_grad_norm", "max_steps_per_epoch", "epochs"


def take_update(leaves: Leaves) -> bool:
    """Take what the update is made of, and how many there are.

    Returns whether the optimizer keeps its state on the host. Raises UnsupportedError: this version
    has no such rule.
    """
    component = leaves.take(_RULE, str)
    is_away = component is not None and component.endswith(_ON_HOST)
    if is_away:
        component = leaves.take(_ITS_RULE, str, f"{_TORCH}AdamW")
    if component is not None:
        _rule(leaves, component)
    _schedule(leaves)
    _length(leaves)
    clip = numbered(leaves.rest.pop(_CLIP, None))
    if clip is not None and (isinstance(clip, bool) or not isinstance(clip, int | float)):
        raise FileFormatError(f"{leaves.path}: {_CLIP} is {clip!r}, and wants a number; correct it")
    largest = 0.0 if clip is None else float(clip)
    leaves.say("clip", largest if math.isfinite(largest) else 0.0, _CLIP)  # else it only measures
    leaves.say("seed", leaves.take("seed", int), "seed")
    return is_away


def _rule(leaves: Leaves, component: str) -> None:
    """Take the rule and its numbers."""
    module, _, name = component.rpartition(".")
    rule = rule_named(name)
    if rule is None:
        raise UnsupportedError(
            f"{leaves.path}: {_RULE}={component} is none of this version's; use torch.optim.AdamW, "
            f"bitsandbytes.optim.AdamW8bit or another that it has (brimful plan --help)"
        )
    is_fused = leaves.take("optimizer.fused", bool, False)
    is_each = leaves.take("optimizer.foreach", bool, True)
    if f"{module}." == _TORCH and name in {"AdamW", "Adam"} and is_each and not is_fused:
        rule = rule_named(f"{DEFAULT}_torch")  # which is foreach on a GPU
    leaves.say("optimizer", rule, _RULE)
    if f"{module}." == _BITSANDBYTES and name in _WIDE and leaves.rest.get("dtype") != "fp32":
        leaves.stand_ins.append(
            f"{name} of bitsandbytes holds moments in fp32: planned in the weights' type, 4 bytes "
            f"a parameter less"
        )
    usual: dict[str, Any] = dict(_USUAL) if DEFAULT in name.lower() else {}
    if rule in OPTIMIZERS and OPTIMIZERS[rule].is_momentum:
        usual["momentum"] = 0.0
    for key, flag in (("lr", "learning_rate"), ("weight_decay", "weight_decay"),
                      ("eps", "epsilon"), ("momentum", "beta1")):  # fmt: skip
        leaves.say(flag, _number(leaves, f"optimizer.{key}", usual.get(key)), f"optimizer.{key}")
    betas = leaves.take("optimizer.betas", list, usual.get("betas"))
    if betas is not None:
        _betas(leaves, [numbered(each) for each in betas])


def _betas(leaves: Leaves, betas: list[Any]) -> None:
    if len(betas) != 2 or not all(type(each) in {int, float} for each in betas):  # noqa: PLR2004
        raise FileFormatError(
            f"{leaves.path}: optimizer.betas is {betas}, and wants two numbers; correct it"
        )
    for flag, each in zip(("beta1", "beta2"), betas, strict=True):
        leaves.say(flag, float(each), "optimizer.betas")


def _number(leaves: Leaves, key: str, default: float | None = None) -> float | None:
    """Take a number, which YAML 1.1 may leave as text."""
    leaves.rest |= {key: numbered(leaves.rest[key])} if key in leaves.rest else {}
    value: float | None = leaves.take(key, float, default)
    return value


def _schedule(leaves: Leaves) -> None:
    """Take how rates go; where nothing says so they stay."""
    component = leaves.take(_SCHEDULE, str)
    warmup = leaves.take(_WARMUP, int)
    leaves.say("warmup_steps", warmup or 0, _WARMUP)
    if component is None:
        leaves.say("schedule", "constant", "(no lr_scheduler)")
    elif "cosine" in component:
        leaves.say("schedule", "cosine", _SCHEDULE)
        leaves.notes.append(
            f"the cosine ends at 0 of the peak and is planned to end at {COSINE_ENDS_AT:g}"
        )
    else:
        leaves.notes.append(f"{_SCHEDULE}={component} is planned as --schedule says")


def _length(leaves: Leaves) -> None:
    each = leaves.take(_EACH, int)
    if each is not None and each > 0:
        leaves.say("steps", each * leaves.take(_EPOCHS, int, 1), _EACH)
