"""Which line of a program is running: the innermost outside PyTorch and this package."""

import re
import sys
from typing import Any

import torch

from brimful import loop_phases

_OURS = (
    torch.__path__[0],
    __file__.rpartition("outer_lines.py")[0],
    loop_phases.__file__,
)
_COMPILED = re.compile(r"/[a-z2-7]{2}/c[a-z2-7]{40,}\.py$")
"""The path of what PyTorch's compiler wrote, which is nobody's line: it has a hash for a name
(``code_hash`` in ``torch/_inductor/codecache.py``)."""


class OuterLines:
    """Lines of a program, whose code is told from others' once."""

    def __init__(self) -> None:
        """Know no code yet."""
        self._is_ours: dict[Any, bool] = {}

    def here(self) -> tuple[Any, int] | None:
        """Return the code and the line that are running; None: there is nothing but ours."""
        frame: Any = sys._getframe(2)  # noqa: SLF001
        while frame is not None:
            if self.is_program(frame.f_code):
                return frame.f_code, frame.f_lineno
            frame = frame.f_back
        return None

    def is_program(self, code: Any) -> bool:
        """Return whether code is neither PyTorch's nor this package's."""
        ours = self._is_ours.get(code)
        if ours is None:
            file = code.co_filename
            ours = file.startswith(_OURS) or _COMPILED.search(file) is not None
            self._is_ours[code] = ours
        return not ours
