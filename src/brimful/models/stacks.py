"""Which of a model's blocks read and which write, where it has two stacks of them."""

from brimful.files.remembered import once_for_each
from brimful.models import generic
from brimful.models.architectures import ARCHITECTURES
from brimful.models.layout import num_in_first_list
from brimful.models.spec import ModelSpec
from brimful.models.traced import find_built


@once_for_each
def num_readers(spec: ModelSpec) -> int:
    """Count the blocks of an encoder-decoder that read, which come before those that write.

    ``spec``: a model of two stacks; one that no file here describes may not have been built yet.
    """
    if spec.model_type in ARCHITECTURES:
        return num_in_first_list(ARCHITECTURES[spec.model_type].layout(spec))
    built = find_built(spec)
    return generic.num_readers(spec) if built is None else num_in_first_list(built.layout)
