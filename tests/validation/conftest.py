"""The evidence's own modules are scripts, not part of the package: they are found by path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "validation"))
