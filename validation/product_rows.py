"""Rows of evidence on products: two techniques or more, predicted and simulated."""

import msgspec
from architecture_rows import ComparedPeaks


class ProductRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A drawn product.

    Attributes:
        number: Which draw of the seed.
        words: What it is.
        num_devices: On how many GPUs.
        cause: Why it has no prediction; empty where it has one.
        peaks: Both rungs; None where one of them was not climbed.
        unsimulated: Why there is no simulation; empty where there is one.
        spent_s: Seconds that all of it took, tracing included.
    """

    number: int
    words: str
    num_devices: int
    cause: str = ""
    peaks: ComparedPeaks | None = None
    unsimulated: str = ""
    spent_s: float = 0.0
