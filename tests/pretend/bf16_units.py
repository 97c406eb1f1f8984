"""What a real run in bf16 asks of a CPU."""

import pytest
import torch


def has_bf16_units():
    """Whether bf16 products have instructions of their own."""
    return getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()


def need_bf16_units():
    """Skip where the CPU multiplies bf16 by way of fp32 copies, which no simulation counts."""
    if not has_bf16_units():
        pytest.skip("this CPU has no units for bf16: its kernels widen what they multiply")


def kernels_take_copies():
    """Whether oneDNN lays 16-bit and other operands out anew, as it does from AVX-512 on."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")
