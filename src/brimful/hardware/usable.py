"""What of a GPU's memory a program can allocate: known from public runs, or assumed by one rule.

The number on the box is never what PyTorch prints. Where that is known (an out-of-memory message,
``get_device_properties``) it is in the table. Where it is not, the smallest share that any GPU of
the table with memory of the same kind has is assumed, and said to be.
"""

import msgspec

from brimful.hardware.datasheets import Datasheet, MemoryKind, cited

SHARES: dict[MemoryKind, tuple[float, float]] = {
    "hbm": (0.98, 1.0),
    "gddr": (0.94, 1.0),
    "gddr-ecc": (0.90, 0.94),
    "unified": (0.79, 0.96),
}
"""PyTorch's total over the number on the box in GiB, least and most: the spread over the GPUs of
the table whose total is known, rounded outward. ECC in GDDR6 costs a sixteenth of the memory.

Of ``unified`` memory PyTorch's total is no promise, as the host's processes are in it: least is
what was free on a DGX Spark just started, 101.3 of 121.69 GiB, and most that total.

Source: https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47
"""
DRIVER_SHARES = (0.97, 1.0)
"""PyTorch's total over that of ``nvidia-smi``, which includes what the driver reserves: from 0.970
(T4) to 0.996 (B200)."""
_NOT_FOUND = "no public run was found"


class UsableMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program can allocate.

    Attributes:
        num_bytes: To plan with: what is known, else the least that is likely.
        low_bytes: The least that is likely.
        high_bytes: The most that is likely.
        is_known: Whether a public run printed it.
        why: The source, or the rule.
    """

    num_bytes: int
    low_bytes: int
    high_bytes: int
    is_known: bool
    why: str


def usable_memory(sheet: Datasheet) -> UsableMemory:
    """Return what a program can allocate on a GPU of the table."""
    if sheet.usable_bytes is not None:
        known = sheet.usable_bytes
        return UsableMemory(
            num_bytes=known, low_bytes=known, high_bytes=known, is_known=True,
            why=cited(sheet, "usable_bytes"),
        )  # fmt: skip
    if sheet.driver_bytes is not None:
        return _assumed(sheet.driver_bytes, DRIVER_SHARES, "nvidia-smi's total")
    unified = sheet.memory_kind == "unified"
    return _assumed(
        sheet.memory_bytes,
        SHARES[sheet.memory_kind],
        "the number on the box",
        "the host's processes share the memory" if unified else _NOT_FOUND,
    )


def is_set_aside(sheet: Datasheet, label_bytes: int) -> bool:
    """Whether so much of a machine's one memory is what its firmware gives to the GPU, as AMD's do.

    The host's processes are not in it then.
    """
    is_one = sheet.memory_kind == "unified" and sheet.maker == "AMD"
    return is_one and label_bytes < sheet.memory_bytes


def _assumed(
    whole_bytes: int, shares: tuple[float, float], whole: str, because: str = _NOT_FOUND
) -> UsableMemory:
    low, high = (round(whole_bytes * share) for share in shares)
    return UsableMemory(
        num_bytes=low,
        low_bytes=low,
        high_bytes=high,
        is_known=False,
        why=f"assumed, {because}: {shares[0]:.0%} of {whole}",
    )
