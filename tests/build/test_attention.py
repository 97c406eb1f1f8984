"""Each way to attend computes the same, on the kernel that it names."""

import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.build.assemble import build_program
from brimful.build.attention import IMPLEMENTATION, KERNELS, model_inputs
from brimful.build.attention.flex import causal_blocks, document_blocks
from brimful.build.batch import Batch
from brimful.errors import UnsupportedError
from brimful.values.strategy import Attention
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
CPU_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class Seen(TorchDispatchMode):
    """Counts every operator that reaches a kernel."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        self.counts[func] = self.counts.get(func, 0) + 1
        return func(*args, **(kwargs or {}))


def attend(attention, architecture="llama"):
    """Run one forward and backward; returns states, a gradient, and what ran."""
    job = make_job(architecture)
    program = build_program(job, make_strategy(attention=attention), CPU)
    ids = torch.arange(2 * job.seq_len).view(2, -1)
    with Seen() as seen:
        inputs = model_inputs(program, Batch(ids, ids))
        hidden = program.model.base_model(input_ids=ids, **inputs, use_cache=False)[0]
        weights = torch.arange(hidden.numel()).sin().view_as(hidden)
        (hidden * weights).sum().backward()
    return hidden.detach(), program.model.get_input_embeddings().weight.grad, seen.counts


@pytest.mark.parametrize("attention", ["sdpa", "flash"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_fused_attention_computes_what_written_out_attention_does(architecture, attention):
    hidden, grad, seen = attend(attention, architecture)
    plain_hidden, plain_grad, plain_seen = attend("eager", architecture)
    assert seen[CPU_FLASH] == 3
    assert not any(kernel in plain_seen for kernel in KERNELS)
    for one, other in ((hidden, plain_hidden), (grad, plain_grad)):
        assert (one - other).norm() < 1e-5 * other.norm()


def test_a_kernel_that_a_cpu_lacks_is_refused_and_not_replaced_by_another(monkeypatch):
    for attention in ("efficient", "cudnn"):
        with pytest.raises(UnsupportedError, match="cannot run here"):
            attend(attention)
    monkeypatch.setattr("brimful.build.assemble.check_attention", lambda *_: None)
    for attention in ("efficient", "cudnn"):
        with pytest.raises(RuntimeError, match="No viable backend"):
            attend(attention)


def test_every_attention_has_a_name_that_transformers_makes_no_mask_for():
    assert set(IMPLEMENTATION) == set(Attention.__args__)
    assert len(set(IMPLEMENTATION.values())) == len(IMPLEMENTATION)
    assert not any("flash" in name for name in IMPLEMENTATION.values())


def test_a_decoder_that_needs_no_mask_is_given_none():
    job = make_job()
    ids = torch.zeros((2, job.seq_len), dtype=torch.int64)
    built = build_program(job, make_strategy(), CPU)
    for attention in ("sdpa", "flash", "varlen"):
        program = dataclasses.replace(built, strategy=make_strategy(attention=attention))
        assert model_inputs(program, Batch(ids, ids)) == {"attention_mask": None}


def test_block_masks_show_what_the_mask_shows():
    segments = torch.ones((2, 512), dtype=torch.int32)
    segments[0, 256:] = 2
    causal = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    apart = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert causal_blocks(segments).to_dense().tolist() == [[causal]]
    assert document_blocks(segments).to_dense().tolist() == [[apart], [causal]]
