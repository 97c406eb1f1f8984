"""Classes whose attention is their own: no kernel and no mask is given them from outside."""

from typing import Any

from brimful.build.attention.windows import FULL, SLIDING


def attends_by_itself(model: Any) -> bool:
    """Whether a class of ``transformers`` attends by its own code alone, or by more than attention.

    Blocks of other kinds than full and sliding attention (convolutions, recurrences) are given
    masks of other kinds, which the class knows.
    """
    is_given = model._supports_attention_backend  # noqa: SLF001 - the class says it nowhere else
    return not is_given or bool(other_kinds(model.config))


def other_kinds(config: Any) -> list[str]:
    """List the kinds of blocks that are neither full nor sliding attention."""
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    return sorted(kind for kind in kinds if kind != FULL and SLIDING not in kind)
