"""The experts of a model, whether its architecture is read here or not."""

from brimful.models.architectures import MIXTURES, named_with
from brimful.models.experts import NO_EXPERTS, Experts
from brimful.models.spec import ModelSpec

GROUPED = named_with("groups_experts")
"""Those whose experts run as one grouped product (``Architecture.groups_experts``)."""


def known_experts(spec: ModelSpec) -> Experts:
    """Read the experts of a model; ``NO_EXPERTS`` where its architecture is none of these."""
    record = MIXTURES.get(spec.model_type)
    return NO_EXPERTS if record is None or record.experts is None else record.experts(spec)
