"""Documents packed into a row, or padded, learn what they would learn alone."""

from functools import cache

import pytest
import torch

from brimful.build.assemble import build_program
from brimful.build.attention import model_inputs
from brimful.build.attention.masks import document_mask
from brimful.build.attention.positions import document_positions
from brimful.build.attention.varlen import SUPPOSED_TOKENS, document_bounds
from brimful.build.batch import count_targets
from brimful.build.step import train_step
from samples import make_job, make_model, make_strategy

from .documents import PACKED_LENGTHS, PADDED_LENGTHS, make_documents, run_alone, to_batch

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
NUM_STEPS = 6
LENGTHS = {"documents": PACKED_LENGTHS, "none": PADDED_LENGTHS}
NUM_ROWS = {"documents": 2, "none": 4}
SWITCHES = [
    {"attention": "sdpa"},
    {"attention": "eager"},
    {"attention": "sdpa", "micro_batch": 1},
    {"attention": "sdpa", "activation_checkpointing": "full", "loss_chunks": 3},
    {"attention": "eager", "activation_checkpointing": "selective", "loss_chunks": 5},
    {"attention": "sdpa", "activation_checkpointing": "selective:2", "micro_batch": 1},
]
SEGMENTS = torch.tensor([[1, 1, 1, 2, 2, 3, 0, 0], [1, 2, 3, 3, 3, 3, 3, 3]], dtype=torch.int32)


def job_of(architecture, packing):
    return make_job(architecture, packing=packing, global_batch=NUM_ROWS[packing])


@cache
def alone(architecture, packing):
    job = job_of(architecture, packing)
    weights = build_program(job, make_strategy(), CPU).model.state_dict()
    copied = {key: value.clone() for key, value in weights.items()}
    return run_alone(job, copied, LENGTHS[packing], num_steps=NUM_STEPS)


def run(job, strategy, *, forget_segments=False):
    program = build_program(job, strategy, CPU)
    return steps_of(program, num_steps=NUM_STEPS, forget_segments=forget_segments)


def steps_of(program, *, num_steps, forget_segments=False):
    job, size = program.job, program.strategy.micro_batch
    steps = []
    for step in range(num_steps):
        rows = make_documents(job, LENGTHS[job.packing], step=step)
        batches = [to_batch(job, rows[i : i + size]) for i in range(0, len(rows), size)]
        if forget_segments:
            batches = [batch._replace(segments=None) for batch in batches]
        num_targets = count_targets(batches)
        result = train_step(
            program, batches, num_targets=num_targets, learning_rate=job.learning_rate
        )
        steps.append((float(result.loss), float(result.grad_norm)))
    return steps


def assert_alike(steps, expected, *, loss=1e-5, norm=1e-4):
    assert [one for one, _ in steps] == pytest.approx([one for one, _ in expected], rel=loss)
    assert [one for _, one in steps] == pytest.approx([one for _, one in expected], rel=norm)


@pytest.mark.few
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_packed_documents_learn_what_they_would_alone(architecture, switches):
    steps = run(job_of(architecture, "documents"), make_strategy(**switches))
    assert_alike(steps, alone(architecture, "documents"))


@pytest.mark.few
@pytest.mark.parametrize("switches", [*SWITCHES, {"attention": "flash"}], ids=str)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_padded_documents_need_no_mask(architecture, switches):
    job, strategy = job_of(architecture, "none"), make_strategy(**switches)
    assert_alike(run(job, strategy), alone(architecture, "none"))
    if strategy.attention != "eager":
        batch = to_batch(job, make_documents(job, PADDED_LENGTHS, step=0))
        assert model_inputs(build_program(job, strategy, CPU), batch) == {"attention_mask": None}


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_documents_that_see_one_another_would_be_noticed(architecture):
    mixed = run(job_of(architecture, "documents"), make_strategy(), forget_segments=True)
    expected = alone(architecture, "documents")
    assert abs(mixed[0][0] / expected[0][0] - 1) > 1e-4
    assert abs(mixed[0][1] / expected[0][1] - 1) > 1e-2


def test_a_packed_row_learns_in_16_bits_what_it_would_alone_but_for_their_rounding():
    job = make_job(packing="documents", global_batch=2, precision="bf16-mixed")
    steps = steps_of(build_program(job, make_strategy(), CPU), num_steps=1)
    assert_alike(steps, alone("llama", "documents")[:1], loss=1e-2, norm=3e-2)


def test_positions_begin_anew_in_every_document_and_in_the_padding():
    assert document_positions(SEGMENTS).tolist() == [
        [0, 1, 2, 0, 1, 0, 0, 1],
        [0, 0, 0, 1, 2, 3, 4, 5],
    ]


@pytest.mark.parametrize("seq_len", [8, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mask_shows_a_token_its_own_document_up_to_itself(dtype, seq_len):
    segments = SEGMENTS[:, :seq_len]
    mask = document_mask(segments, dtype=dtype)
    assert mask.shape == (2, 1, seq_len, seq_len)
    assert mask.dtype == dtype
    for row in range(2):
        for query in range(seq_len):
            for key in range(seq_len):
                seen = key <= query and segments[row, query] == segments[row, key]
                expected = 0.0 if seen else torch.finfo(dtype).min
                assert mask[row, 0, query, key] == expected


def test_rows_of_the_mask_begin_where_the_memory_efficient_kernel_wants_them():
    assert document_mask(SEGMENTS[:, :5], dtype=torch.float32).stride() == (40, 40, 8, 1)
    assert document_mask(SEGMENTS, dtype=torch.float32).is_contiguous()


def test_bounds_are_where_documents_begin_and_where_the_last_ends():
    assert document_bounds(SEGMENTS).tolist() == [0, 3, 5, 6, 8, 9, 10, 16]
    assert document_bounds(SEGMENTS).dtype == torch.int32
    whole = torch.ones(2, 8, dtype=torch.int32)  # rows that end in the same number
    assert document_bounds(whole).tolist() == [0, 8, 16]


def test_the_bounds_of_fake_tensors_have_the_supposed_number_of_documents():
    meta = torch.empty((3, 5 * SUPPOSED_TOKENS + 1), dtype=torch.int32, device="meta")
    assert document_bounds(meta).shape == (3 * 6 + 1,)


WIDE = {"llama": {"hidden_size": 64}, "gpt2": {"n_embd": 64}}
"""Heads of 16: FlexAttention takes none that are narrower."""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU is visible")
@pytest.mark.parametrize("attention", ["sdpa", "efficient", "cudnn", "varlen", "flex"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_every_kernel_of_a_gpu_keeps_documents_apart(architecture, attention):
    model = make_model(architecture, **WIDE[architecture])
    job = make_job(model=model, packing="documents", global_batch=2, precision="bf16-mixed")
    program = build_program(job, make_strategy(attention=attention), torch.device("cuda"))
    weights = {key: value.cpu().clone() for key, value in program.model.state_dict().items()}
    expected = run_alone(job, weights, PACKED_LENGTHS, num_steps=1)
    assert_alike(steps_of(program, num_steps=1), expected, loss=1e-2, norm=3e-2)
