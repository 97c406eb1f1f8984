"""Draws, checks and laws are scripts beside the evidence, found by path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "validation"))
