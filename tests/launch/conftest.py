"""What is planted is planted as the evidence does it, whose modules are found by path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "validation"))
