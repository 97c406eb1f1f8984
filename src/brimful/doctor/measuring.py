"""Counts the magnitudes of a tensor, a piece at a time; no tensor is kept.

On the device by torch; on a CPU by numpy, whose operations on small arrays cost a fifth of torch's.
Both count the same.

Source: layout of IEEE 754 binary32; fp16, bf16 and both fp8 formats are subsets of fp32.
"""

from typing import NamedTuple

import numpy as np
import torch

from brimful.build.own import own_memory
from brimful.doctor.spectrum import NUM_BINS

PIECE_ON_HOST = 2**16
"""Numbers counted at a time on a CPU: what is made of them stays in its cache."""
PIECE_ON_DEVICE = 2**22
_MAGNITUDE, _INF_BITS, _MANTISSA = 0x7FFFFFFF, 0x7F800000, 23


class Counted(NamedTuple):
    """What was counted of a tensor, still on its device.

    Attributes:
        counts: [NUM_BINS] of int64, as ``spectrum`` says.
        largest_bits: Bits of the largest finite magnitude in fp32, a scalar of int32.
    """

    counts: torch.Tensor
    largest_bits: torch.Tensor


def count_magnitudes(tensor: torch.Tensor) -> Counted:
    """Count a tensor's numbers by magnitude.

    ``tensor``: of any shape and floating-point type, on any device; of one that is sharded this
    process's piece. fp64 is rounded to fp32 first.
    """
    flat = own_memory(tensor).detach().reshape(-1)
    on_host = flat.device.type == "cpu"
    size, count = (PIECE_ON_HOST, count_on_host) if on_host else (PIECE_ON_DEVICE, count_on_device)
    if flat.numel() <= size:
        return count(flat)
    pieces = [count(piece) for piece in flat.split(size)]
    counts = torch.stack([piece.counts for piece in pieces]).sum(0)
    return Counted(counts, torch.stack([piece.largest_bits for piece in pieces]).amax())


def count_on_device(flat: torch.Tensor) -> Counted:
    """Count a piece of a tensor by torch, wherever it is; [N], detached."""
    bits = flat.float().view(torch.int32) & _MAGNITUDE
    if not bits.numel():
        return Counted(bits.new_zeros(NUM_BINS, dtype=torch.int64), bits.new_zeros(()))
    largest = bits.amax()
    if int(largest) >= _INF_BITS:
        largest = bits.where(bits < _INF_BITS, 0).amax()
    # Exactly 2^e: e + (e - 1); between it and the next: e + e; 0: 0 + (-1).
    places = bits.sub(1).bitwise_right_shift_(_MANTISSA)
    places.add_(bits.bitwise_right_shift_(_MANTISSA)).add_(1)
    return Counted(torch.bincount(places, minlength=NUM_BINS), largest)


def count_on_host(flat: torch.Tensor) -> Counted:
    """Count a piece of a tensor by numpy; [N], detached, on a CPU."""
    bits = flat.float().numpy().view(np.int32) & _MAGNITUDE
    largest = bits.max(initial=0)
    if largest >= _INF_BITS:
        largest = np.where(bits < _INF_BITS, bits, 0).max()
    places = bits - 1
    places >>= _MANTISSA
    bits >>= _MANTISSA
    places += bits
    places += 1
    counts = np.bincount(places, minlength=NUM_BINS)
    return Counted(torch.from_numpy(counts), torch.tensor(int(largest), dtype=torch.int32))
