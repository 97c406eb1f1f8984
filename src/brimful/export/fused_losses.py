"""Losses of other trainers that keep full logits out of memory, and what stands in for them.

Liger's kernels are Liger's here too (``fused_kernels``). A fused linear cross-entropy of another
maker (Apple's cut cross-entropy, Unsloth's) has no more than a tile of logits at once, to which the
loss in many chunks comes nearest.

Source: ``src/axolotl/integrations/liger`` and ``.../cut_cross_entropy`` (``args.py``) of Axolotl
0.19.0; ``model/model_utils/liger_kernel.py`` of LLaMA-Factory 0.9.6.dev0; ``integrations/liger.py``
of Transformers 5.23, whose defaults leave the fused loss on; ``sft_trainer.py`` and
``dpo_trainer.py`` of TRL 1.16.0; ``unsloth_zoo/fused_losses/cross_entropy_loss.py``;
``torchtune/modules/loss`` of torchtune's commit bd2a0fc7.
"""

from typing import NamedTuple

from brimful.export.leaves import Leaves

FLAG, CHUNKS_FLAG = "fused_kernels", "loss_chunks"
MOST_CHUNKS = 32
"""The most chunks that a search looks at: of a tile of logits nothing is nearer."""


class _Kept(NamedTuple):
    """Bytes a logit of a loss in chunks that recomputes none of them.

    Attributes:
        whole: Kept of all chunks until backward.
        passing: Of one chunk alone, at the most.
    """

    whole: float
    passing: float


_OURS = 12.0
"""Bytes a logit of ours at the most, of one chunk (``published/logit_copies.py``)."""
_LEAST = 0.9
"""Of what a loss takes, what stands in for it may take at the least."""
_EAGER = {
    "LinearCrossEntropyLoss": _Kept(4, 8), "CEWithChunkedOutputLoss": _Kept(6, 4),
}  # fmt: skip
"""Eagerly: log-probabilities in fp32, beside which a chunk has two gradients; of the second the
model's own logits in 16 bits too, until the loss is there. On the pretend GPU both take 5.06 and
6.56 bytes in 8 chunks, of 4,096 tokens and 128,256 words at a width of 64."""
_COMPILED = _Kept(2, 0)
"""Compiled: logits in 16 bits alone, which their gradient is written over. torchtune's README of
that commit has 8.5 and 4.6 GiB of LoRA and QLoRA of Llama 3.2 3B, 2.05 bytes a logit more than
weights, adapters and their state."""
CHUNKED_LOSSES = frozenset(_EAGER)
"""Losses that ``take_kept_chunks`` knows."""
_PLUGINS = "plugins"
_CUT, _LIGER = "CutCrossEntropyPlugin", "LigerPlugin"
_CUT_SWITCH, _LIGER_KEYS = "cut_cross_entropy", "liger_"
_LIGER_LOSS = "liger_fused_linear_cross_entropy"
_TRAINER, _TRAINER_LOSS = "use_liger_kernel", "liger_kernel_config.fused_linear_cross_entropy"


def take_liger(leaves: Leaves, key: str) -> None:
    """Take Liger's kernels, its loss among them."""
    leaves.say(FLAG, "liger", key)


def take_chunks(leaves: Leaves, key: str) -> None:
    """Take a loss of another maker that has no full logits as the loss in chunks."""
    leaves.say(CHUNKS_FLAG, MOST_CHUNKS, key)
    leaves.stand_ins.append(chunks_words(key, MOST_CHUNKS))


def chunks_words(what: str, chunks: int) -> str:
    """Say that the loss in chunks stands in for another that has no full logits either."""
    return f"{what} is planned as loss in {chunks} chunks"


def take_kept_chunks(leaves: Leaves, name: str, num_chunks: int, *, compiled: bool) -> None:
    """Take a loss in chunks of which each is kept until backward as ours in fewer.

    ``compiled``: whether ``torch.compile`` makes one kernel of a chunk's loss.
    """
    kept = _COMPILED if compiled else _EAGER[name]
    size = kept.whole + kept.passing / num_chunks
    nearest = max(1, int(_OURS / (_LEAST * size)))
    leaves.say(CHUNKS_FLAG, nearest, name)
    leaves.stand_ins.append(
        f"{name} in {num_chunks} chunks keeps each until backward, {size:.3g} bytes a logit: "
        f"planned as loss in {nearest} chunks, {_OURS / nearest:.3g} bytes"
    )


def take_plain(leaves: Leaves, keys: str, why: str) -> None:
    """Say that kernels are planned as PyTorch's own, which take more."""
    leaves.stand_ins.append(f"planned without {keys}, which takes more: {why}")


def take_of_axolotl(leaves: Leaves) -> None:
    """Take Axolotl's plugins and switches of losses and Liger's kernels."""
    plugins, leaves.known[_PLUGINS] = leaves.rest.get(_PLUGINS), list
    every = [str(each) for each in plugins] if isinstance(plugins, list) else []
    own = {each: each.rpartition(".")[2] for each in every}
    is_cut = leaves.take(_CUT_SWITCH, bool, _CUT in own.values())
    on = [
        key for key, value in leaves.rest.items() if key.startswith(_LIGER_KEYS) and value is True
    ]
    leaves.rest = {key: v for key, v in leaves.rest.items() if not key.startswith(_LIGER_KEYS)}
    if every:
        left = [each for each, name in own.items() if name not in {_CUT, _LIGER}]
        leaves.rest |= {_PLUGINS: left}
        if not left:
            del leaves.rest[_PLUGINS]
    if on and _LIGER not in own.values():
        leaves.notes.append(
            f"{on[0]} needs {_LIGER} among the plugins; planned as if it were there"
        )
    if _LIGER_LOSS in on:
        take_liger(leaves, "liger_*")
    elif is_cut and on:
        take_liger(leaves, "liger_*")
        leaves.stand_ins.append(f"{_CUT} is planned as Liger's loss")
    elif is_cut:
        take_chunks(leaves, _CUT)
    elif on:
        take_plain(leaves, ", ".join(on), f"{_LIGER_LOSS} is off")


def take_of_trainer(leaves: Leaves, task: str) -> None:
    """Take the switch of the Trainer and of TRL.

    ``task``: what is learnt: of preferences Liger's loss is another, in chunks as well.
    """
    has_loss = leaves.take(_TRAINER_LOSS, bool, True)
    if not leaves.take(_TRAINER, bool, False):
        return
    if task == "dpo":
        take_chunks(leaves, f"{_TRAINER} (of preferences)")
    elif has_loss:
        take_liger(leaves, _TRAINER)
    else:
        take_plain(leaves, _TRAINER, "its fused loss is off")


def take_of_llama_factory(leaves: Leaves, task: str) -> None:
    """Take the switches of LLaMA-Factory, whose Liger leaves logits of pairs whole."""
    is_unsloth = leaves.take("use_unsloth", bool, False)
    if leaves.take("enable_liger_kernel", bool, False):
        if task == "dpo":
            why = "its fused loss is off for preferences"
            take_plain(leaves, "enable_liger_kernel", why)
        else:
            take_liger(leaves, "enable_liger_kernel")
    elif is_unsloth and task != "dpo":
        take_chunks(leaves, "use_unsloth")
    if is_unsloth:
        leaves.notes.append("Unsloth's kernels are not planned, and take less than these")
