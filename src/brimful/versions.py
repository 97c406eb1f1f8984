"""Which versions a number was made with; figures of different versions are not comparable."""

import platform
from importlib import metadata

import brimful


def versions() -> tuple[str, ...]:
    """List python, torch, transformers and brimful as ``name version``, without importing them."""
    packages = (f"{name} {metadata.version(name)}" for name in ("torch", "transformers"))
    return (f"python {platform.python_version()}", *packages, f"brimful {brimful.__version__}")
