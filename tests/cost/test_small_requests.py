"""Sharded models of few blocks, where the order of single tensors decides what is reserved."""

import pytest

from brimful.cost.additions import Piece
from brimful.cost.asked import Move
from brimful.cost.micro_batch import MicroBatch
from brimful.cost.requests import asked_of
from brimful.models.config import read_config
from cost.replays import ALLOCATORS, reserved
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy

CLUSTER = make_cluster("cuda")
SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8,
         "num_key_value_heads": 2, "vocab_size": 30000, "num_hidden_layers": 2}  # fmt: skip
LORA = {"precision": "bf16", "method": "lora", "adapter": make_adapter(rank=8)}
CASES = {
    "positions that are cast": ("olmo2", {"precision": "bf16-mixed"}),
    "blocks whose input has no gradient": ("llama", LORA),
}


def drawn(architecture, fields, **how):
    config = make_model(**SIZES).hf_config
    model = read_config(architecture, {**config, "model_type": architecture})
    job = make_job(model=model, seq_len=922, global_batch=16, **fields)
    return job, make_strategy(micro_batch=2, attention="sdpa", zero=3, dp_shard=4, **how)


@pytest.mark.torch
@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_what_is_reserved_is_what_the_simulation_reserves(name):
    from brimful.simulate.run import simulate_recorded

    job, strategy = drawn(*CASES[name])
    asked = asked_of(job, strategy, CLUSTER.device)
    theirs = simulate_recorded(job, CLUSTER, strategy).recording.requests()
    assert asked.num_unmatched == 0
    for allocator in ALLOCATORS:
        expected = reserved(theirs, allocator)
        assert reserved(asked.requests(), allocator) == pytest.approx(expected, rel=1e-3)


def flat(parts):
    """List tensors that come and go, and what stands between them, in order."""
    return [move for each in parts for move in ([each] if hasattr(each, "piece") else each)]


def is_end(op):
    return not isinstance(op, Move) and op.piece == Piece.BLOCK and not op.num_bytes


@pytest.mark.parametrize("checkpointing", ["none", "full:1", "selective:1"])
def test_a_block_has_its_output_before_its_parameters_go(monkeypatch, checkpointing):
    """Where one block is all of its kind too, which no trace shows."""
    seen = []
    monkeypatch.setattr(MicroBatch, "ask", lambda _batch, _asked, works: seen.append(works))
    asked_of(*drawn("llama", LORA, activation_checkpointing=checkpointing), CLUSTER.device)
    blocks = [flat(work.parts) for work in seen[0] if work.is_block and work.times]
    assert len(blocks) == 4  # two forward, two backward
    for ops in blocks[:2]:
        comes = [i for i, op in enumerate(ops) if isinstance(op, Move) and op.num_bytes]
        (goes,) = [i for i, op in enumerate(ops) if is_end(op)]
        assert comes[-1] < goes
