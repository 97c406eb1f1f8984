"""What Axolotl's files say of kernels, and of what is kept for backward: recomputed or on the host.

Source: ``src/axolotl/utils/schemas/{config,validation,enums,peft,quantization}.py``,
``core/trainers/mixins/activation_checkpointing.py``, ``core/builders/base.py`` and
``loaders/{model,patch_manager}.py`` of Axolotl's commit 067b021c (0.18).
"""

from brimful.errors import FileFormatError, InputError
from brimful.export.fused_losses import take_plain
from brimful.export.leaves import Leaves

_AGAIN, _AWAY = "gradient_checkpointing", "activation_offloading"
_AWAY_BY_AGAIN = {"offload": True, "unsloth": True, "offload_disk": "disk"}
"""What the older key says of the newer."""
_INPUTS = "hidden_states"
_PLACES = ("legacy", "disk", _INPUTS)
_ATTENTION = "attn_implementation"
_OLD_ATTENTIONS = {
    "xformers_attention": "xformers", "sage_attention": "sage",
    "flex_attention": "flex_attention", "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa", "eager_attention": "eager",
}  # fmt: skip
"""Switches of older files, in the order in which Axolotl asks for them."""
_ATTENTIONS = {"eager": "eager", "sdpa": "sdpa", "flex_attention": "flex"}
_FLASH = "flash"
_LORA_KERNELS = tuple(f"lora_{part}_kernel" for part in ("mlp", "qkv", "o", "embedding"))
_PLAIN_KERNELS = ("use_kernels", "tiled_mlp", "fused_attn_kernel")
_EXPERTS = ("use_scattermoe", "use_sonicmoe")
_EXPERTS_KEY, _GROUPED = "experts_implementation", "grouped_mm"
_PLUGINS, _KERNELS_PLUGIN = "plugins", "KernelsPlugin"
_OF_ADAPTERS = "lora_dropout"
_NOT_PLANNED = {
    "unfrozen_parameters": "all parameters are planned to train, which takes more than {key}",
    "lora_target_parameters": "adapters of {key} come on top of what is planned",
}


def take_kept(leaves: Leaves, num_layers: int, *, is_adapted: bool) -> tuple[str, ...]:
    """Take what of blocks is recomputed, and return what the host keeps for their backward.

    With adapters what blocks keep is offloaded in place of recomputing it, else the inputs of
    recomputed blocks. Raises FileFormatError: a value is none of Axolotl's.
    """
    again, away = leaves.rest.pop(_AGAIN, None), leaves.rest.pop(_AWAY, None)
    key = _AWAY if away else _AGAIN
    if isinstance(again, str):
        away = away or _AWAY_BY_AGAIN.get(again)
        again = True
    if away not in {None, False, True, *_PLACES}:
        raise FileFormatError(
            f"{leaves.path}: {_AWAY} is {str(away)[:40]}, none of Axolotl's; use true, false, "
            f"{', '.join(_PLACES)}"
        )
    leaves.known[_AGAIN] = bool
    leaves.take(f"{_AGAIN}_kwargs.use_reentrant", bool)
    if away and not again:
        raise InputError(
            f"{leaves.path}: {_AWAY} goes with {_AGAIN} alone, as Axolotl would say; set that too"
        )
    if not away:
        if again is not None:
            leaves.say("activation_checkpointing", ["full" if again else "none"], _AGAIN)
        return ()
    recomputes = not is_adapted or away == _INPUTS
    leaves.say("activation_checkpointing", ["full" if recomputes else "none"], key)
    return (f"activations:{num_layers}",)


def take_kernels(leaves: Leaves, *, is_adapted: bool, is_flat: bool) -> None:
    """Take attention, and say which kernels are planned as PyTorch's own.

    ``is_flat``: whether FSDP1 shards, beside which LoRA's kernels are off.
    """
    _attention(leaves)
    said = {key: leaves.rest.pop(key, None) for key in _LORA_KERNELS}
    if on := [key for key, value in said.items() if value is True]:
        take_plain(leaves, ", ".join(on), "adapters are PEFT's layers")
    elif is_adapted and not any(value is False for value in said.values()) and not is_flat:
        is_off = (
            any(leaves.rest.get(key) for key in ("trust_remote_code", "rl"))
            or any(each.value == "llm-int8" for each in leaves.taken)
            or any(each.flag == "task" and each.value == "dpo" for each in leaves.taken)
        )
        if not is_off:
            leaves.notes.append(
                "Axolotl turns on lora_mlp_kernel, lora_qkv_kernel and lora_o_kernel, which keep "
                "less than PEFT's layers that are planned"
            )
    plain = [key for key in _PLAIN_KERNELS if leaves.take(key, bool, False)]
    if plain:
        take_plain(leaves, ", ".join(plain), "layers are transformers' own")
    _experts(leaves)
    if leaves.take(_OF_ADAPTERS, float, 0.0) > 0 and is_adapted:
        leaves.stand_ins.append(
            f"planned without {_OF_ADAPTERS}, which keeps a mask and a copy of each adapted "
            f"layer's input more"
        )
    for key, words in _NOT_PLANNED.items():
        if leaves.rest.get(key):
            leaves.stand_ins.append(words.format(key=key))
            del leaves.rest[key]


def _attention(leaves: Leaves) -> None:
    """Take attention: flash's kernels keep what the planned ones do."""
    old = {
        name: leaves.take(key, bool, False)
        for key, name in _OLD_ATTENTIONS.items()
        if leaves.rest.get(key) is not None
    }
    first = next((name for name, is_on in old.items() if is_on), "")
    name = leaves.take(_ATTENTION, str, "") or first
    packs = any(each.flag == "packing" and each.value == "documents" for each in leaves.taken)
    if name in _ATTENTIONS and not (packs and name == "sdpa"):
        leaves.say("attention", _ATTENTIONS[name], _ATTENTION)
    elif name and _FLASH not in name and name not in _ATTENTIONS:
        leaves.notes.append(f"{_ATTENTION}={name} is planned as --attention says")


def _experts(leaves: Leaves) -> None:
    """Take how experts are computed: one product for all, of PyTorch's or of another maker."""
    other = [key for key in _EXPERTS if leaves.take(key, bool, False)]
    kind = leaves.take(_EXPERTS_KEY, str, "")
    if kind and kind != _GROUPED and not other:
        other = [f"{_EXPERTS_KEY}={kind}"]
    if other:
        leaves.stand_ins.append(
            f"experts of {', '.join(other)} are planned as PyTorch's grouped products"
        )
    plugins = leaves.rest.get(_PLUGINS)
    if isinstance(plugins, list):
        left = [each for each in plugins if not str(each).endswith(f".{_KERNELS_PLUGIN}")]
        leaves.rest[_PLUGINS] = left
        if not left:
            del leaves.rest[_PLUGINS]
