"""The block that is written out by hand, beside the one that was traced."""

import pytest
from tests.cost.llama_block import forward_flops, saved_bytes

from brimful.cost.profiles import dimensions, load_profile
from brimful.cost.trajectory import evaluate_terms, kind_bytes
from brimful.models.config import load_model
from samples import make_job


def traced(profile):
    """Return the forward of a block between others."""
    runs = profile.variants["plain"].first
    run = next(r for r in runs if (r.phase, r.group, r.role) == ("forward", "plain", "middle"))
    return profile.works[run.work]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.2-1b", "llama-2-7b"])
@pytest.mark.parametrize(("micro_batch", "seq_len"), [(1, 4096), (3, 128)])
def test_a_block_by_hand_is_the_one_traced(name, micro_batch, seq_len):
    job = make_job(model=load_model(name), seq_len=seq_len, global_batch=micro_batch)
    dims = dimensions(job, micro_batch=micro_batch, chunk_tokens=micro_batch * seq_len)
    profile = load_profile("llama.hf.bf16.sdpa.cuda")
    work = traced(profile)
    assert saved_bytes(dims).total == kind_bytes(profile, dims)[list(work.events)].sum()
    flops = evaluate_terms(work.matrix_flops, dims) + evaluate_terms(work.attention_flops, dims)
    assert forward_flops(dims) == flops
