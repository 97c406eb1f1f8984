"""Which versions a number was made with; figures of different versions are not comparable."""

import contextlib
import platform
from importlib import metadata

import brimful


def versions() -> tuple[str, ...]:
    """List python, torch, transformers and brimful as ``name version``, without importing them.

    What is not installed is left out.
    """
    found = [f"python {platform.python_version()}"]
    for name in ("torch", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return (*found, f"brimful {brimful.__version__}")
