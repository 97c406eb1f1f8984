"""A pytest fixture for libraries that train: a step's peak memory, asserted without a GPU.

::

    def test_a_step_stays_within_its_budget(pretend_gpu):
        with pretend_gpu("a100-80gb") as run:
            step(Model().to("cuda"))
        assert run.peak_allocated_bytes <= 30 * 2**30

pytest finds this file by its entry point, so it imports nothing but pytest until it is used.
"""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from brimful.pretend.session import Run


@pytest.fixture
def pretend_gpu() -> "Callable[..., Run]":
    """Return ``brimful.pretend.gpu``, for programs that say ``cuda``.

    The arguments are those of ``brimful.pretend.gpu``; ``says_cuda=False`` is for code that says
    ``gpu``. What it returns has ``peak_allocated_bytes``, ``recording()`` and ``report()``.
    """
    from brimful.pretend import gpu

    def make(name: str = "h100-80gb", **settings: Any) -> "Run":
        return gpu(name, **{"says_cuda": True, **settings})

    return make
