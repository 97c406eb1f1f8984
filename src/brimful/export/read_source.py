"""A file of another program's settings read back, whichever program's it is."""

from pathlib import Path

from brimful.export.leaves import Read
from brimful.export.read_accelerate import read_accelerate
from brimful.export.read_deepspeed import read_deepspeed

_YAML = {".yaml", ".yml"}


def read_source(path: Path, *, num_devices: int, num_layers: int) -> Read:
    """Read Accelerate's YAML, or DeepSpeed's JSON.

    Args:
        path: Of the file.
        num_devices: That it is planned for.
        num_layers: Blocks of the model.

    Raises:
        FileFormatError: It is neither, or holds a value of another type.
        InputError: Its numbers do not go together.
        UnsupportedError: This version plans nothing like it.
    """
    read = read_accelerate if path.suffix.lower() in _YAML else read_deepspeed
    return read(path, num_devices=num_devices, num_layers=num_layers)
