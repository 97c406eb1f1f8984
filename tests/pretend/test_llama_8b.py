"""Llama 3.1 8B at full depth: our program, and the loop that most people write."""

import numpy as np
import pytest

from brimful.units import GIB
from brimful.values.results import WORKSPACES

pytestmark = pytest.mark.torch

SEQ_LEN = 4096
MASKS_BYTES = 32 * SEQ_LEN * SEQ_LEN * 2


def our_peak_bytes():
    from brimful.cli.main import parser_of
    from brimful.cli.resolved import asked
    from brimful.simulate.run import simulate

    argv = ["llama-3.1-8b", "--gpus", "h100-80gb", "--precision", "bf16", "--seq-len", "4096"]
    items = simulate(*asked(parser_of("simulate").parse_args(argv))).items
    return sum(item.num_bytes for item in items if item.name != WORKSPACES)


def literal_loop_peak_bytes(*, keep_output):
    """Two steps of ``out = model(labels=...); out.loss.backward()`` as in any tutorial."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import AutoConfig, AutoModelForCausalLM

    from brimful.models.config import load_model
    from brimful.pretend import device
    from brimful.pretend.tape import Tape

    device.register()
    config = AutoConfig.for_model("llama", **load_model("llama-3.1-8b").hf_config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tape = Tape()
    with FakeTensorMode(allow_non_fake_inputs=True), tape:
        model.to_empty(device="gpu:0").train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            ids = torch.zeros((1, SEQ_LEN), dtype=torch.int64, device="gpu:0")
            out = model(input_ids=ids, labels=ids, use_cache=False)
            loss = out.loss
            if not keep_output:
                del out
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return peak_of_tensors(tape.finish())


def peak_of_tensors(recording):
    """Leave out what kernels take for themselves, of which the spike knew nothing."""
    workspace = np.array([item == WORKSPACES for item in recording.items])
    return int(recording.without(workspace[recording.item]).live_bytes().max())


@pytest.fixture(scope="module")
def literal_bytes():
    return literal_loop_peak_bytes(keep_output=True)


@pytest.mark.long  # real peaks of small programs are in test_programs.py
def test_the_literal_loop_agrees_with_an_independent_spike(literal_bytes):
    # A spike with another tape gave 77.9 GiB for this loop; its attention ignored the mask, which
    # every block turns from bool into an additive one of its own.
    assert (literal_bytes - MASKS_BYTES) / GIB == pytest.approx(77.88, abs=0.02)


# Docs state it of this machine-independent run; other programs are in test_programs.py.
@pytest.mark.long
def test_what_our_program_does_not_hold(literal_bytes):
    without_output, ours = literal_loop_peak_bytes(keep_output=False), our_peak_bytes()
    logits = SEQ_LEN * 128256 * 2
    # A mask made under the fake mode sends attention to a kernel that wants keys and values
    # repeated for every query head: 24 more heads of 128 in 32 blocks, twice.
    repeated = 32 * 2 * SEQ_LEN * 24 * 128 * 2
    assert ours / GIB == pytest.approx(75.39, abs=0.01)
    assert literal_bytes - without_output == logits
    assert without_output - ours == pytest.approx(repeated + MASKS_BYTES, rel=0.02)
