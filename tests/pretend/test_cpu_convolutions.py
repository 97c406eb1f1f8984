"""What a CPU's convolutions hold beside their results, against runs for real."""

import functools

import pytest
import torch
from tests.pretend.real_peaks import measured
from tests.pretend.test_programs import simulated
from torch import nn
from torch.nn import functional

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cpu._is_avx2_supported(), reason="oneDNN's kernels for x86"),
]

RELATIVE, SCRATCH_BYTES = 0.005, 2**16
DTYPES = [
    torch.float32,
    pytest.param(
        torch.bfloat16,
        marks=pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="AMX's layouts"),
    ),
]


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.second(functional.silu(self.norm(self.first(x))))


def network(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.GELU(), Residual(width), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False), nn.ReLU(),
        Residual(2 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10),
    )  # fmt: skip


def train(make, shape, dtype, device):
    model = make().to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        x = torch.randn(*shape, dtype=dtype, device=device, requires_grad=True)
        model(x).float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def compare(program):
    real, _ = measured(program)
    found = int(simulated(program).live_bytes().max())
    assert found == pytest.approx(real, rel=RELATIVE, abs=SCRATCH_BYTES)


@pytest.mark.few
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "rows"), [(24, 48), (32, 33)])
def test_a_network_takes_what_it_takes_for_real(dtype, width, rows):
    make = functools.partial(network, width)
    compare(functools.partial(train, make, (rows, 3, 32, 32), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(20, 40, 3, padding=1),
        lambda: nn.Conv2d(20, 40, 3, padding=1, stride=2),
        lambda: nn.Conv2d(20, 40, 1),
        lambda: nn.Conv2d(20, 20, 3, padding=1, groups=20),
        lambda: nn.Conv2d(20, 1, 5, padding=2),
        lambda: nn.Conv2d(20, 40, 3, padding=1).to(memory_format=torch.channels_last),
    ],
)
def test_one_convolution_takes_what_it_takes_for_real(dtype, make):
    compare(functools.partial(train, make, (96, 20, 24, 24), dtype))


def test_few_channels_are_read_as_they_are():
    for channels in (1, 3, 12):
        make = functools.partial(nn.Conv2d, channels, 24, 3, padding=1)
        compare(functools.partial(train, make, (96, channels, 24, 24), torch.float32))
