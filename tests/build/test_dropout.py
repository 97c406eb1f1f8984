"""Dropout of a model's configuration: steps of a plain loop, masks drawn once more, bytes."""

import hashlib
import json
from functools import cache

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from brimful.build.assemble import build_program
from brimful.build.batch import IGNORE_INDEX, count_targets
from brimful.build.drawing import draw_anew
from brimful.build.step import micro_step, train_step
from brimful.simulate.run import simulate, trace
from build.dropout_programs import SPREADS, run, work
from metered import meter_steps
from other_models import cut, make_other_job, make_other_model, ragged
from processes import run_group
from samples import make_cluster, make_job, make_model, make_strategy

from .plain import ragged_batches

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
NUM_STEPS = 2
AUTO = {"gpt2": AutoModelForCausalLM, "bert": AutoModelForSequenceClassification}


def dropping_job(name, **changes):
    """A job of a model whose configuration drops a tenth, of hidden states and of scores."""
    make = make_other_job if name == "bert" else make_job
    return make(name, dropout="model", **changes)


def batches_of(job, strategy, step):
    if job.model.model_type == "bert":
        return cut(ragged(job, step=step), strategy.micro_batch)
    return ragged_batches(job, strategy, step=step)


def plain_seed(job, step, number):
    digest = hashlib.blake2b(f"{job.seed} {step} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest)


def plain_steps(job, strategy, weights):
    """Train by the class's own forward pass; returns (loss, gradient norm) of every step."""
    config = AutoConfig.for_model(job.model.model_type, **job.model.hf_config)
    auto = AUTO[job.model.model_type]
    model = auto.from_config(config, attn_implementation="eager").train()
    model.load_state_dict(weights)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": job.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=job.learning_rate, betas=(0.9, 0.95), eps=1e-8)
    steps = []
    for step in range(NUM_STEPS):
        batches, total = batches_of(job, strategy, step), 0.0
        for number, batch in enumerate(batches):
            torch.manual_seed(plain_seed(job, step + 1, number))
            mask = None if batch.segments is None else (batch.segments != 0).long()
            logits = model(input_ids=batch.inputs, attention_mask=mask).logits
            labels = batch.labels.flatten()
            loss = torch.nn.functional.cross_entropy(
                logits.reshape(len(labels), -1), labels, reduction="sum", ignore_index=IGNORE_INDEX
            ) / count_targets(batches)
            loss.backward()
            total += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        optimizer.step()
        optimizer.zero_grad()
        steps.append((total, float(norm)))
    return steps


@pytest.mark.parametrize("name", AUTO)
def test_two_steps_are_those_of_a_plain_loop_with_the_same_seeds(name):
    job, strategy = dropping_job(name), make_strategy(attention="eager")
    program = build_program(job, strategy, CPU)
    plain = plain_steps(
        job, strategy, {k: v.clone() for k, v in program.model.state_dict().items()}
    )
    for step, (loss, norm) in enumerate(plain):
        batches = batches_of(job, strategy, step)
        done = train_step(
            program, batches, num_targets=count_targets(batches),
            learning_rate=job.learning_rate, step=step + 1,
        )  # fmt: skip
        assert float(done.loss) == pytest.approx(loss, rel=1e-5)
        assert float(done.grad_norm) == pytest.approx(norm, rel=1e-4)


@cache
def gradients(name, attention, checkpointing, compiles="none", **where):
    job = dropping_job(name)
    strategy = make_strategy(
        attention=attention, activation_checkpointing=checkpointing, compile=compiles
    )
    program = build_program(job, strategy, CPU)
    batch = batches_of(job, strategy, 0)[0]
    draw_anew(program, **{"step": 1, "number": 0, **where})
    micro_step(program, batch, num_targets=40)
    return [p.grad for p in program.model.parameters()]


def are_equal(some, others):
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("checkpointing", ["full", "full:2", "selective"])
@pytest.mark.parametrize(
    ("name", "attention"), [("gpt2", "eager"), ("gpt2", "sdpa"), ("bert", "sdpa")]
)
def test_checkpointed_blocks_drop_the_same_once_more(name, attention, checkpointing):
    expected = gradients(name, attention, "none")
    assert are_equal(gradients(name, attention, checkpointing), expected)


def test_masks_hang_on_the_step_and_the_micro_batch_and_nothing_before():
    first = gradients("gpt2", "eager", "none")
    assert are_equal(gradients.__wrapped__("gpt2", "eager", "none"), first)
    assert not are_equal(gradients("gpt2", "eager", "none", step=2), first)
    assert not are_equal(gradients("gpt2", "eager", "none", number=1), first)


@pytest.mark.long  # half a minute each, of a C++ compiler
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize(("name", "compiles"), [("gpt2", "blocks"), ("bert", "model")])
def test_compiled_code_draws_by_the_same_seeds(name, compiles):
    """Other numbers than eager PyTorch, the same for a block that runs again."""
    first = gradients(name, "sdpa", "none", compiles=compiles)
    assert are_equal(gradients(name, "sdpa", "full", compiles=compiles), first)
    assert are_equal(gradients.__wrapped__(name, "sdpa", "none", compiles=compiles), first)
    assert not are_equal(gradients(name, "sdpa", "none", step=2, compiles=compiles), first)


@pytest.mark.filterwarnings("ignore")
def test_a_compiler_keeps_what_tells_the_mask_and_no_noise():
    """On a CPU too, where eager PyTorch keeps what it multiplied by."""
    strategy = make_strategy(attention="sdpa", compile="blocks")
    recording = trace(dropping_job("gpt2"), strategy, imitate="cpu", num_steps=1).recording
    scores = f"[{strategy.micro_batch}, 4, 24, 24]"
    assert (scores, "bool") in recording.shapes


GPT2 = {"n_embd": 128, "n_inner": 344, "vocab_size": 2000}
BERT = {"hidden_size": 128, "intermediate_size": 512, "vocab_size": 2000}
MEASURED = [
    # model, attention, checkpointing, what is compiled
    ("gpt2", "eager", "none", "none"),
    ("gpt2", "sdpa", "full", "none"),
    ("gpt2", "sdpa", "selective", "none"),
    ("bert", "sdpa", "full:2", "none"),
    *(
        pytest.param(case, marks=pytest.mark.long)
        for case in (("gpt2", "sdpa", "none", "blocks"), ("bert", "sdpa", "full", "model"))
    ),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_what_is_simulated_is_what_the_profiler_counts(case):
    name, attention, checkpointing, compiles = case
    model = make_model(name, **GPT2) if name == "gpt2" else make_other_model(name, **BERT)
    job = dropping_job(name, model=model, seq_len=256, global_batch=2)
    strategy = make_strategy(
        attention=attention, activation_checkpointing=checkpointing, compile=compiles
    )
    batches = batches_of(job, strategy, 0)
    measured = meter_steps(job, strategy, batches).measured_peak_allocated_bytes
    found = simulate(job, make_cluster("cpu"), strategy).simulated_peak_allocated_bytes
    assert found == pytest.approx(measured, rel=1e-3)


def test_two_devices_draw_what_one_does_that_runs_every_micro_batch(tmp_path):
    run_group(work, 2, str(tmp_path))
    spread, alone = json.loads((tmp_path / "steps.json").read_text()), run()
    for name in SPREADS:
        for found, expected in zip(spread[name], alone, strict=True):
            assert found == pytest.approx(expected, rel=1e-5)
