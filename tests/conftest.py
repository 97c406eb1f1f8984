"""Settings that must stand before torch and the libraries of models are imported."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
"""Tests use tiny tensors: threads would wait for each other, most of all beside other tests."""
os.environ["HF_HUB_OFFLINE"] = "1"
"""Tests ask no network; where there is none, the hub's client would try again and again."""
