"""Classes whose attention is their own: no kernel and no mask is given them from outside."""

from typing import Any


def attends_by_itself(model: Any) -> bool:
    """Whether a class of ``transformers`` attends by its own code alone."""
    return not model._supports_attention_backend  # noqa: SLF001 - the class says it nowhere else
