"""Settings that must stand before torch and the libraries of models are imported."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
"""Tests use tiny tensors: threads would wait for each other, most of all beside other tests."""
os.environ["HF_HUB_OFFLINE"] = "1"
"""Tests ask no network; where there is none, the hub's client would try again and again."""

UNSEEN = (
    "examples/test_jobs.py",
    "simulate/test_adapters.py",
    "simulate/test_attention_kernels.py",
    "simulate/test_optimizers.py",
    "simulate/test_search.py",
    "simulate/test_tasks.py",
    "validation/test_peers_part.py",
    "validation/test_quality_part.py",
    "validation/test_techniques_part.py",
)
"""Files that were not seen to pass from end to end since the last large change, or that take
minutes: ``make test-all`` runs them (LOG, "Next")."""
collect_ignore = [] if os.environ.get("BRIMFUL_ALL_CASES") else list(UNSEEN)
