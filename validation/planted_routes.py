"""Routers that prefer what they are told: a hot expert, or a collapsed router, on purpose."""

from typing import Any

import torch
from group import Plant

from brimful.build.experts import is_router
from brimful.build.program import Program


def plant(program: Program, planted: Plant) -> None:
    """Let tokens of one block choose given experts before any other.

    What the router gave the choices that they replace is theirs; the block's other tokens and all
    other blocks route as they do.

    Args:
        program: Of a decoder with experts; a block that another device has is left alone.
        planted: Where, and which.
    """
    for name, module in program.model.named_modules():
        if f".{planted.block}." in name and is_router(program.model, name):
            module.register_forward_hook(lambda _m, _args, out: _preferring(out, planted))


def _preferring(routed: Any, planted: Plant) -> Any:
    """Change what a router returns: logits, weights and choices, [N, k] the last two."""
    logits, weights, choices = routed
    chosen = choices.clone()
    num_tokens = round(planted.share * len(chosen))
    for place, expert in enumerate(planted.experts):
        first = chosen[:num_tokens]
        rest = torch.where(first == expert, first[:, place : place + 1], first)
        rest[:, place] = expert
        chosen = torch.cat([rest, chosen[num_tokens:]])
    return logits, weights, chosen
