"""What is in host memory between its uses, and how that is spelled.

``optimizer``: the optimizer's state, its update, and the gradients that it reads. ``parameters:K``:
the parameters of the first K blocks too, and so all that ``optimizer`` says. ``activations:K``:
what the first K blocks keep for their backward pass. Without a K: all blocks. Several go together,
separated by commas. Knows no torch; ``build.offload`` moves.
"""

import re
from typing import NamedTuple

from brimful.errors import InputError

NONE = "none"
KINDS = ("optimizer", "parameters", "activations")
"""In the order in which they are spelled."""
_PART = re.compile(r"(optimizer|parameters|activations)(?::(\d{1,9}))?")


class Away(NamedTuple):
    """What is in host memory.

    Attributes:
        optimizer: Whether the optimizer's state and its update, and the gradients, are.
        parameters: Of how many blocks the parameters are, from the first block on.
        activations: Of how many blocks what they keep for backward is, from the first block on.
    """

    optimizer: bool
    parameters: int
    activations: int


NOTHING_AWAY = Away(optimizer=False, parameters=0, activations=0)


def away_of(text: str, *, num_layers: int) -> Away:
    """Read what is offloaded.

    Args:
        text: As people type it: ``none``, or kinds separated by commas.
        num_layers: Blocks of the model.

    Raises:
        InputError: It cannot be read, names a kind twice, or more blocks than there are.
    """
    counts = dict(_parts(text, num_layers)) if text != NONE else {}
    parameters = counts.get("parameters", 0)
    return Away(
        optimizer=bool(counts.get("optimizer", 0) or parameters),
        parameters=parameters,
        activations=counts.get("activations", 0),
    )


def _parts(text: str, num_layers: int) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None or (match[2] is not None and match[1] == "optimizer"):
            raise InputError(
                f"offload={text!r} is not known; use none, or some of optimizer, parameters:K and "
                f"activations:K with K from 1 to {num_layers}, separated by commas"
            )
        count = num_layers if match[2] is None else int(match[2])
        if match[1] != "optimizer" and not 1 <= count <= num_layers:
            raise InputError(
                f"offload={text} asks for {count} blocks and the model has {num_layers}; use "
                f"{match[1]}:K with K from 1 to {num_layers}"
            )
        if match[1] in dict(found):
            raise InputError(f"offload={text} names {match[1]} twice; name it once")
        found.append((match[1], count if match[1] != "optimizer" else 1))
    return found


def spell_offload(away: Away, *, num_layers: int) -> str:
    """Write what is offloaded the way people type it."""
    parts = []
    if away.optimizer and not away.parameters:
        parts.append("optimizer")
    for kind, count in (("parameters", away.parameters), ("activations", away.activations)):
        if count:
            parts.append(kind if count == num_layers else f"{kind}:{count}")
    return ",".join(parts) or NONE
