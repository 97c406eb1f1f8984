"""A command of Brimful, and the bytes of all tensors that are alive behind some of its steps.

``python soak_worker.py FILE EVERY COMMAND...``: a line of ``FILE`` is a step and bytes.
"""

import gc
import sys
from pathlib import Path
from typing import Any

import torch

from brimful.cli.main import main
from brimful.train import loop


def live_bytes() -> int:
    """Add up the storages of all tensors that Python can reach."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def watch(path: Path, every: int) -> None:
    """Let the trainer's own step be followed by a line of the file, every so often."""
    plain, taken = loop.train_step, 0

    def step(*args: Any, **more: Any) -> Any:
        nonlocal taken
        result = plain(*args, **more)
        taken += 1
        if taken % every == 0:
            with path.open("a") as lines:
                lines.write(f"{taken} {live_bytes()}\n")
        return result

    loop.train_step = step


if __name__ == "__main__":
    watch(Path(sys.argv[1]), int(sys.argv[2]))
    sys.argv[1:] = sys.argv[3:]
    main()
