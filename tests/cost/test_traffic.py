"""Seconds of collectives that shards and replicas take, by hand."""

import numpy as np
import pytest

from brimful.cost.comm import collective_seconds, overlapped_seconds
from brimful.cost.family import Family
from brimful.cost.traffic import BACKWARD_SHARE, Traffic, gather_seconds, later_s, reduce_seconds
from brimful.cost.trained import Part
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.values.job import plain_job

JOB = plain_job(load_model("llama-3.2-1b"), precision="bf16", seq_len=2048, global_batch=64)
SHAPE = (4096, 2048)
NUM_BYTES = 2 * 4096 * 2048
"""Of its gradients in bf16."""


def test_gradients_are_scattered_among_shards_and_then_added_up_among_replicas():
    cluster = load_cluster("4x8xh100-80gb", memory_limit_bytes=None)
    family = Family(1, 1, "plain", np.array([0]), "full", 3, 32)
    shards = np.array([32.0, 8.0])
    alone, both = reduce_seconds(JOB, Part([SHAPE], [SHAPE]), family, shards, cluster)
    assert alone == pytest.approx(collective_seconds("reduce-scatter", NUM_BYTES, 32, cluster))
    scattered = collective_seconds("reduce-scatter", NUM_BYTES, 8, cluster)
    among = collective_seconds("all-reduce", NUM_BYTES / 8, 4, cluster, 8)
    assert both == pytest.approx(scattered + among)
    assert among > scattered / 10


def test_fsdp1_sends_no_rows_of_padding():
    """A stack of 8 experts over 64 devices: FSDP2 pads its first dimension to 64 rows."""
    cluster = load_cluster("8x8xh100-80gb", memory_limit_bytes=None)
    each = Family(1, 1, "plain", np.array([0]), "full", 3, 64)
    shards, stack, row = (
        np.array([64.0]),
        Part([(8, 8192, 8192)], [(8, 8192, 8192)]),
        (8192, 8 * 8192),
    )
    for seconds in (gather_seconds, reduce_seconds):
        by_rows = seconds(JOB, Part([row], [row]), each, shards, cluster)
        assert seconds(JOB, stack, each._replace(fsdp=1), shards, cluster) == by_rows
        assert seconds(JOB, stack, each, shards, cluster) > 7 * by_rows


def test_what_is_exchanged_once_a_step_runs_beside_the_last_backward_pass_alone():
    """Ten micro-batches of a second: gradients of 5 s are as late as behind one of them."""
    held = Traffic(np.zeros(1), np.array([5.0]))
    one, ten = (n + later_s(np.array([1.0 * n]), held, n)[0] for n in (1, 10))
    assert one == pytest.approx(1 - BACKWARD_SHARE + 5)
    assert ten == pytest.approx(9 + one)
    each = Traffic(np.array([0.5]), np.zeros(1))  # beside every one: slows them down
    alone = overlapped_seconds(np.array([10.0]), np.array([5.0]))
    assert 10 + later_s(np.array([10.0]), each, 10) == pytest.approx(alone)
