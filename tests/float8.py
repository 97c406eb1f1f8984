"""What tests of the fp8 recipe need; a library without the ``dev`` extra may lack it."""

from importlib.util import find_spec

import pytest

WHY = "torchao is not installed (pip install 'brimful[fp8]')"
NEEDS_TORCHAO = pytest.mark.skipif(find_spec("torchao") is None, reason=WHY)


def with_skips(recipes):
    """Return recipes as parameters, fp8 skipped with the reason where torchao is missing."""
    return [pytest.param(r, marks=NEEDS_TORCHAO) if r == "fp8" else r for r in recipes]
