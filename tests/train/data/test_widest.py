"""Rows at full width: more padding, and the same step."""

import pytest
import torch

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.step import train_step
from brimful.train.data.widest import widest
from other_models import make_other_job, ragged
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch
LONGER = 16


def step(job, attention, batch):
    strategy = make_strategy(micro_batch=job.global_batch, attention=attention)
    program = build_program(job, strategy, torch.device("cpu"))
    result = train_step(program, [batch], num_targets=count_targets([batch]), learning_rate=1e-3)
    return float(result.loss), float(result.grad_norm)


@pytest.mark.parametrize("name", ["bert", "t5", "switch"])
def test_a_wider_batch_is_the_same_step(name):
    job = make_other_job(name)
    batch = ragged(job, step=1)
    wide = widest(batch, seq_len=job.seq_len + LONGER)
    assert wide.inputs.shape == wide.segments.shape == (len(batch.inputs), job.seq_len + LONGER)
    assert wide.labels.ndim == 1 or wide.labels.shape[1] == job.seq_len + LONGER
    attention = "eager" if name == "switch" else "sdpa"
    assert step(job, attention, wide) == pytest.approx(step(job, attention, batch), rel=1e-5)


def test_a_decoder_takes_the_same_step():
    job = make_job(packing="none", global_batch=2)
    ids = torch.arange(12).reshape(2, 6) % 7
    batch = Batch(ids, ids.clone(), torch.tensor([[1] * 6, [1] * 4 + [0] * 2], dtype=torch.int32))
    batch.labels[1, 4:] = -100
    wide = widest(batch, seq_len=LONGER)
    assert wide.inputs.shape == (2, LONGER)
    assert count_targets([wide]) == count_targets([batch])
    assert step(job, "sdpa", wide) == pytest.approx(step(job, "sdpa", batch), rel=1e-5)


def test_whole_rows_are_left_alone():
    batch = Batch(torch.zeros(2, 5), torch.zeros(2))
    assert widest(batch, seq_len=LONGER) is batch
