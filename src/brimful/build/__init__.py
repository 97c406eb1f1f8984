"""The one place that turns a job and a strategy into a model, an optimizer and a training step.

``simulate`` calls it with fake tensors and ``train`` with real ones, so a simulation cannot drift
from the run.
"""
