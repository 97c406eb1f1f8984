"""Which adapters a job is traced with."""

import pytest

from brimful.cost.own_programs import traced_adapters
from brimful.models.config import load_model
from brimful.values.job import Adapter, plain_job


def job(upcast, base="nf4-double"):
    adapter = Adapter(
        rank=8, alpha=8.0, targets=("all-linear",), trained_modules=(), dtype="same", base=base,
        upcast=upcast, input_requires_grad=False,
    )  # fmt: skip
    return plain_job(
        load_model("llama-3.2-1b"), method="qlora", adapter=adapter, precision="bf16-mixed",
        seq_len=64, global_batch=2,
    )  # fmt: skip


@pytest.mark.parametrize("upcast", ["none", "norms", "all"])
def test_what_is_held_in_fp32_is_gathered_in_16_bits(upcast):
    assert traced_adapters(job(upcast), gathers=False).upcast == upcast
    assert traced_adapters(job(upcast), gathers=True).upcast == "none"
