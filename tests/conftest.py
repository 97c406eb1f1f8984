"""Settings that must stand before torch is imported."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
"""Tests use tiny tensors: threads would wait for each other, most of all beside other tests."""
