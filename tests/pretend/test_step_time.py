"""Seconds of a step of a script: by hand, beside our own program's, and unknown where they are."""

from functools import partial

import pytest
import torch
from torch import nn

from brimful import pretend
from brimful.cost.assumptions import around
from brimful.cost.efficiency import ProductSize, efficiency_of, product_share
from brimful.hardware.cluster import matrix_rate
from brimful.hardware.gpus import device_named
from brimful.show.pretend import pretend_summary

pytestmark = pytest.mark.torch

GPU, WIDTH, ROWS, DEPTH = "a100-40gb", 4096, 8192, 3


def trained(model, *, gpu=GPU, rows=ROWS, dtype=torch.bfloat16, num_steps=2, **how):
    with pretend.gpu(gpu, **how) as run:
        model = model.cuda().to(dtype)
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(num_steps):
            x = torch.zeros(rows, WIDTH, device="cuda", dtype=dtype)
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return run.report()


def layers(*others):
    linear = partial(nn.utils.skip_init, nn.Linear)  # whose values nobody looks at
    each = [linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)]
    return nn.Sequential(*each, *others)


@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16"), (None, "fp32")]
)
def test_products_run_at_the_rate_of_their_type(dtype, precision):
    device = device_named(GPU)
    rate = matrix_rate(device, precision)
    rate *= product_share(device, precision, ProductSize(ROWS, WIDTH))
    # Forward, of the weights and of all inputs but the first.
    flops = (3 * DEPTH - 1) * 2 * ROWS * WIDTH**2
    dtype = dtype or torch.float32
    found = trained(layers(), dtype=dtype).step_time
    bandwidth = device.memory_bytes_per_s * efficiency_of(device).memory_share
    # The loss reads the last activation, its gradient is spread; the update knows every weight.
    other = (3 * ROWS * WIDTH + 6 * DEPTH * WIDTH**2) * dtype.itemsize / bandwidth
    assert flops / rate < found.simulated_s < flops / rate + 1.5 * other
    assert found.step == 2
    band = around(found.simulated_s, device)
    assert (found.low_s, found.high_s) == (band.low, band.high)


def test_documents_laid_end_to_end_are_as_long_as_the_longest():
    num, longest, heads = 3, 512, 4
    with pretend.gpu(GPU) as run:
        q, k, v = (
            torch.zeros(num * longest, heads, 64, device="cuda", dtype=torch.bfloat16)
            for _ in range(3)
        )
        ends = torch.arange(0, (num + 1) * longest, longest, device="cuda", dtype=torch.int32)
        torch.ops.aten._flash_attention_forward(
            q, k, v, ends, ends, longest, longest, 0.0, True, False
        )
    (attended,) = run.tape.work[-1].attention
    assert (attended.kernel, attended.length, attended.head) == ("flash", longest, 64)


def test_tf32_is_what_the_script_says():
    slow = trained(layers(), dtype=torch.float32).step_time.simulated_s
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert trained(layers(), dtype=torch.float32).step_time.simulated_s < 0.4 * slow
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_work_that_is_too_little_takes_as_long_as_its_launches():
    device = device_named(GPU)
    found = trained(layers(*[nn.ReLU() for _ in range(50)]), rows=1, dtype=torch.bfloat16)
    assert found.step_time.simulated_s > 100 * device.op_overhead_s


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv1d(1, 64, 9, padding=4)

    def forward(self, x):
        return self.one(x[:, None])


@pytest.mark.parametrize(
    "how",
    [
        {"model": Convolved(), "rows": 64},
        {"model": layers(), "world_size": 2},
        {"model": layers(), "dtype": torch.float64},
        {"model": layers(), "gpu": "t4", "dtype": torch.bfloat16},
    ],
    ids=["convolution", "processes", "fp64", "no units for bf16"],
)
def test_what_has_no_known_rate_has_no_time(how):
    report = trained(**how)
    assert report.step_time is None
    (words,) = [
        fact.short for fact in pretend_summary(report, ["x.py"]).facts if fact.label == "speed"
    ]
    assert words == f"not told: {report.untimed}"


@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.parametrize("is_called", [True, False])
def test_what_a_compiler_makes_has_no_time_if_it_is_called(is_called):
    """bitsandbytes has functions of its own compiled where it is imported."""
    with pretend.gpu(GPU) as run:
        model = layers().cuda()
        compiled = torch.compile(model)
        optimizer = torch.optim.SGD(model.parameters())
        run_it = compiled if is_called else model
        run_it(torch.zeros(8, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
    report = run.report()
    assert (report.step_time is None) == is_called
    assert ("a compiler" in report.untimed) == is_called


def test_a_step_is_told_and_whether_the_program_fits():
    def told(report):
        return [
            fact.text for fact in pretend_summary(report, ["x.py"]).facts if fact.label == "speed"
        ]

    (words,) = told(trained(layers()))
    assert words.startswith("a step of ")
    assert " to " in words
    (words,) = told(trained(layers(), rows=2**20, gpu="t4", dtype=torch.float16))
    assert words.endswith("had the card room for it")
