"""What a real run in bf16 asks of a CPU."""

import pytest
import torch


def need_bf16_units():
    """Skip where the CPU multiplies bf16 by way of fp32 copies, which no simulation counts."""
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    if not supported:
        pytest.skip("this CPU has no units for bf16: its kernels widen what they multiply")
