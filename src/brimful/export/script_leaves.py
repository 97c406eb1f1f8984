"""What scripts on top of the Trainer say of their model, its texts and its adapters.

Such scripts name these as they like; what many of them share is read by its names.

Source: ``run_clm.py``, ``run_translation.py``, ``run_glue.py`` of transformers; ``train.py`` of
Stanford's Alpaca, FastChat, LLaVA, Qwen, InternVL and LMFlow; ``qlora.py`` of QLoRA; ``main.py`` of
DeepSpeed-Chat; ``arguments.py`` of FlagEmbedding.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from brimful.export.leaves import Leaves
from brimful.export.trainer_leaves import Held, names_of, say_adapter
from brimful.values.job import ALL_LINEAR

MODELS = ("model_name_or_path", "model_id", "actor_model_name_or_path")
"""How they call their model."""
LENGTHS = {
    "block_size": "wrapped", "model_max_length": "none", "max_seq_len": "none",
}  # fmt: skip
"""How they call the length of a text, and how they pack it."""
PAIRED = {"max_source_length": 1024, "max_target_length": 128}
"""The same of texts that are read and others that are written, with what is taken where nothing is
said."""
_SUMMED = (
    ("source_max_len", "target_max_len"), ("max_prompt_seq_len", "max_answer_seq_len"),
)  # fmt: skip
"""The same of texts one behind the other in a row."""
_SEARCHED, _GROUP = ("query_max_len", "passage_max_len"), "train_group_size"
"""The same of texts that are embedded, and how many passages belong to a query."""
_CUT = "max_seq_length"
"""The same of those that label texts, and of older TRL."""
_SWITCHES = ("use_lora", "lora_enable", "use_peft", "q_lora", "use_qlora", "lora")
"""How they turn adapters on; where they have none of these, a rank does."""
_FOUR = frozenset({"q_lora", "use_qlora"})
_RANKS = ("lora_r", "lora_rank", "lora_dim", "use_llm_lora")
_TARGETS = (
    "lora_target_modules", "lora_modules", "target_modules", "lora_target", "lora_trainable",
)  # fmt: skip
_EVERY = frozenset({"lora_enable", "use_llm_lora"})
"""What turns on adapters of all linear layers where nothing names them."""
_BITS = (4, 8)
_RANK, _ALPHA, _OF_PEFT = 8, 16, "q_proj,v_proj"


def is_script(content: Mapping[str, Any]) -> bool:
    """Whether a key says that arguments are those of a script, by the length of its texts."""
    keys = {*content}
    summed = {key for pair in (*_SUMMED, _SEARCHED) for key in pair}
    return bool({*LENGTHS, *PAIRED, *summed, *_EVERY} & keys)


def take_script(leaves: Leaves) -> None:
    """Take the length of a text and what trains."""
    for key in MODELS:
        leaves.take(key, str)
    _lengths(leaves)
    _adapters(leaves)


def _lengths(leaves: Leaves) -> None:
    key = next((key for key in LENGTHS if key in leaves.rest), None)
    summed = next((pair for pair in _SUMMED if {*pair} & {*leaves.rest}), None)
    if key is not None:
        leaves.say("task", "causal-lm", key)
        leaves.say("packing", LENGTHS[key], key)
        leaves.say("seq_len", leaves.take(key, int), key)
    elif {*PAIRED} & {*leaves.rest}:
        lengths = {name: leaves.take(name, int, usual) for name, usual in PAIRED.items()}
        longest = max(lengths, key=lambda name: lengths[name])
        leaves.say("task", "seq2seq", longest)
        leaves.say("seq_len", lengths[longest], longest)
        if len({*lengths.values()}) > 1:
            words = " and ".join(f"{name}={length}" for name, length in lengths.items())
            leaves.notes.append(f"{words}: both are planned as long as the longer one")
    elif summed is not None:
        leaves.say("task", "causal-lm", summed[0])
        leaves.say("packing", "none", summed[0])
        leaves.say("seq_len", sum(leaves.take(each, int, 0) for each in summed), "+".join(summed))
    elif {*_SEARCHED} & {*leaves.rest}:
        lengths = {name: leaves.take(name, int, 0) for name in _SEARCHED}
        longest = max(lengths, key=lambda name: lengths[name])
        leaves.say("seq_len", lengths[longest], longest)
    elif _CUT in leaves.rest:
        leaves.say("seq_len", leaves.take(_CUT, int), _CUT)


def count_groups(leaves: Leaves) -> None:
    """Count the passages that belong to each query of a batch: each is a text of its own."""
    group = leaves.take(_GROUP, int, 0)
    if group < 1:
        return
    for place, each in enumerate(leaves.taken):
        if each.flag in {"micro_batch", "global_batch"}:
            leaves.taken[place] = msgspec.structs.replace(each, value=each.value * (1 + group))
    leaves.stand_ins.append(
        f"{_GROUP}={group}: a row is a query and {group} texts, and batches count each of them; "
        f"planned with a loss over tokens, which takes more"
    )


def _adapters(leaves: Leaves) -> None:
    """Take adapters and the bits of the base beside them; say nothing where nothing is said."""
    said = [key for key in _SWITCHES if key in leaves.rest]
    on = [key for key in said if _is_on(leaves.rest.pop(key))]
    key = next((name for name in _RANKS if name in leaves.rest), "")
    rank = leaves.take(key, int, 0) if key else 0
    bits = _bits(leaves, on)
    if not on and (rank < 1 or [name for name in said if name not in _FOUR]):
        return
    by = on[0] if on else key
    is_half = any(_is_on(leaves.rest.get(half)) for half in ("bf16", "fp16"))
    held = Held(
        bits,
        is_double=_is_on(leaves.rest.pop("double_quant", True)),
        whole="bf16" if is_half else "same",
    )
    leaves.rest.pop("quant_type", None)
    say_adapter(leaves, held, is_dora=_is_on(leaves.rest.pop("use_dora", False)), key=by)
    leaves.say("lora_rank", rank or _RANK, key or by)
    leaves.say("lora_alpha", leaves.take("lora_alpha", float, float(_ALPHA)), "lora_alpha")
    _targets(leaves, by)


def _targets(leaves: Leaves, by: str) -> None:
    name = next((name for name in _TARGETS if name in leaves.rest), _TARGETS[0])
    targets = names_of(leaves, name)
    if targets is None:
        targets = ALL_LINEAR if by in _EVERY else _OF_PEFT
        leaves.notes.append(f"{by} names no layers: adapters are planned on {targets}")
    leaves.say("lora_targets", targets, name)


def _bits(leaves: Leaves, on: list[str]) -> int | None:
    """Take the bits of a quantised base; None: it is not quantised."""
    named = [bits for bits in _BITS if _is_on(leaves.rest.pop(f"load_in_{bits}bit", False))]
    bits = leaves.take("bits", int, 0)
    if bits in _BITS:
        named.append(bits)
    return 4 if _FOUR & {*on} else next(iter(named), None)


def _is_on(value: Any) -> bool:
    return str(value).lower() in {"true", "1"}
