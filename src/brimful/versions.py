"""Which versions a number was made with; figures of different versions are not comparable."""

import platform
from importlib import metadata


def versions() -> tuple[str, ...]:
    """List python, torch, transformers and brimful as ``name version``, without importing them."""
    packages = (f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "brimful"))
    return (f"python {platform.python_version()}", *packages)
