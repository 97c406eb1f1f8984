"""A run beside the same that offloads nothing: which of tensors and reserved does not fit."""

import pytest

from brimful.hardware.gpus import load_cluster
from brimful.show.compared import offload_facts
from brimful.units import GIB
from brimful.values.plan import PredictedReserved


def reserved(unhindered):
    return PredictedReserved(
        allocator="", capacity_bytes=79 * GIB, firm_bytes=78 * GIB, limit_bytes=None,
        predicted_peak_reserved_bytes=min(unhindered, 79 * GIB),
        predicted_unhindered_bytes=unhindered, num_retries=0,
        short_bytes=max(0, unhindered - 79 * GIB),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tensors", "held", "words"),
    [
        (70, 81, "70.00 GiB without (with 81.00 GiB reserved, which does not fit in 78.00 GiB)"),
        (82, 90, "82.00 GiB without (which does not fit)"),
    ],
)
def test_what_is_reserved_is_said_where_tensors_would_fit(tensors, held, words):
    cluster = load_cluster("a100-80gb", memory_limit_bytes=None)
    peaks = (60 * GIB, tensors * GIB)
    (fact,) = offload_facts(cluster, peaks, 66 * GIB, reserved(held * GIB), fits=False)
    assert words in fact.text
