"""Requests, added up and replayed: what tests of predicted sequences compare."""

import numpy as np

from brimful.allocator.config import parse_settings
from brimful.allocator.replay import replay

ALLOCATORS = ("", "expandable_segments:True")


def live_peak(requests):
    rows = np.where(requests.events >= 0, requests.events, ~requests.events)
    changes = np.where(requests.events >= 0, 1, -1) * requests.num_bytes[rows]
    return int(np.cumsum(changes).max())


def reserved(requests, allocator):
    settings = parse_settings(allocator)
    return replay(requests, settings=settings, capacity_bytes=None).peak_reserved_bytes
