"""Replays of requests on a card without end."""

import numpy as np

from brimful.allocator.pool import SPAN_BYTES
from brimful.allocator.replay import Requests
from cost.replays import reserved


def test_what_no_segment_of_addresses_holds_is_replayed():
    num_bytes = np.array([SPAN_BYTES // 2, SPAN_BYTES, SPAN_BYTES // 2], dtype=np.int64)
    requests = Requests(
        events=np.array([0, 1, 2, ~1, ~0, ~2], dtype=np.int64),
        num_bytes=num_bytes,
        streams=np.zeros(3, dtype=np.int64),
    )
    assert reserved(requests, "expandable_segments:True") == num_bytes.sum()
