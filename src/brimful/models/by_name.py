"""What is known by a name alone: a language model, or one that makes images, videos or sounds."""

from brimful.files.writing import is_there
from brimful.models import names
from brimful.models.diffusion import Diffusion, find_diffusion
from brimful.models.module import is_factory


def find_named(name_or_path: str) -> names.Taken | Diffusion | None:
    """Find what is known by a name, and by no path or factory: a language or an image model.

    Raises UnknownNameError: it means several language models.
    """
    is_path = name_or_path.startswith((".", "/", "~")) or name_or_path.endswith(".json")
    if is_path or is_factory(name_or_path) or is_there(name_or_path):
        return None
    return names.find(name_or_path) or find_diffusion(name_or_path)
