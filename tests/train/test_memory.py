import sys

import pytest

from brimful.units import MIB

pytestmark = pytest.mark.torch


@pytest.fixture
def cpu():
    import torch

    return torch.device("cpu")


def test_the_peak_sees_what_is_gone_again(cpu):
    from brimful.train.memory import peak_bytes, used_bytes

    block = bytearray(b"x") * (300 * MIB)
    during = used_bytes(cpu)
    del block
    assert during - used_bytes(cpu) > 250 * MIB
    assert peak_bytes(cpu) >= during - 10 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a process's peak")
def test_the_peak_can_be_forgotten(cpu):
    from brimful.train.memory import peak_bytes, reset_peak, used_bytes

    block = bytearray(b"x") * (300 * MIB)
    del block
    before = peak_bytes(cpu)
    reset_peak(cpu)
    assert before - peak_bytes(cpu) > 200 * MIB
    assert peak_bytes(cpu) >= used_bytes(cpu) - 10 * MIB
