"""Encoders that tell hidden tokens take the steps of a plain loop of transformers."""

from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from brimful.build.assemble import build_program, build_skeleton
from brimful.build.batch import count_targets
from brimful.build.step import evaluate, train_step
from brimful.errors import UnsupportedError
from brimful.models.config import for_task, layout_of, read_config
from brimful.models.layout import all_parameters
from brimful.simulate.run import simulate
from brimful.train.data.batches import START, TokenBatches
from brimful.train.data.hiding import Hiding
from brimful.values.job import plain_job
from each_case import each
from metered import meter_steps
from other_models import make_other_model
from samples import make_cluster, make_model, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
SIZES = {
    "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "vocab_size": 97, "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip
OWN = {
    "distilbert": {"dim": 32, "hidden_dim": 80, "n_layers": 3, "n_heads": 4},
    "electra": {"embedding_size": 16},
    "esm": {"mask_token_id": 4, "token_dropout": True, "position_embedding_type": "rotary"},
    "modernbert": {
        "local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 0,
        "sep_token_id": 0,
    },
}  # fmt: skip
OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def masked_job(model=None, **changes):
    fields = {
        "model": for_task(model or make_other_model("bert", **OFF), "masked-lm"),
        "task": "masked-lm", "packing": "wrapped", "seq_len": 24, "global_batch": 4,
        "num_steps": 2, "learning_rate": 1e-2, "seed": 3,
    }  # fmt: skip
    return plain_job(**{**fields, **changes})


def of_type(model_type):
    more = DROPOUT if model_type == "distilbert" else OFF
    fields = {"model_type": model_type, **SIZES, **OWN.get(model_type, {}), **more}
    return read_config(model_type, fields)


def batches_of(job, micro_batch):
    tokens = np.random.default_rng(5).integers(5, job.model.vocab_size, 4000).astype(np.uint16)
    hiding = Hiding(mask_id=4, marks=(0,), num_words=job.model.vocab_size, seed=job.seed)
    return TokenBatches(
        tokens=tokens, seq_len=job.seq_len, global_batch=job.global_batch,
        micro_batch=micro_batch, seed=job.seed, hiding=hiding,
    )  # fmt: skip


def run(job, **switches):
    strategy = make_strategy(**switches)
    program, position, losses = build_program(job, strategy, CPU), START, []
    for _ in range(job.num_steps):
        batches, position = batches_of(job, strategy.micro_batch).step_at(position)
        done = train_step(
            program, batches, num_targets=count_targets(batches), learning_rate=job.learning_rate
        )
        losses.append((float(done.loss), float(done.grad_norm)))
    return losses


@cache
def plain_steps():
    """Train as transformers' own loss says, with whole batches."""
    job = masked_job()
    weights = build_program(job, make_strategy(), CPU).model.state_dict()
    config = AutoConfig.for_model(job.model.model_type, **job.model.hf_config)
    model = AutoModelForMaskedLM.from_config(config, attn_implementation="eager").train()
    model.load_state_dict({name: value.clone() for name, value in weights.items()})
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": job.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=job.learning_rate, betas=(0.9, 0.95), eps=1e-8)
    position, steps = START, []
    for _ in range(job.num_steps):
        (batch,), position = batches_of(job, job.global_batch).step_at(position)
        loss = model(input_ids=batch.inputs, labels=batch.labels).loss
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        optimizer.step()
        steps.append((float(loss.detach()), float(norm)))
    return steps


SWITCHES = [
    {"micro_batch": 4},
    {"micro_batch": 1, "attention": "eager"},
    {"micro_batch": 2, "activation_checkpointing": "full"},
    {"micro_batch": 4, "loss_chunks": 3},
    {"micro_batch": 2, "loss_chunks": 2, "activation_checkpointing": "full:2"},
]


@each("switches", SWITCHES)
def test_every_strategy_takes_the_steps_of_transformers_own_loss(switches):
    for (loss, norm), (plain, plain_norm) in zip(
        run(masked_job(), **switches), plain_steps(), strict=True
    ):
        assert loss == pytest.approx(plain, rel=1e-5)
        assert norm == pytest.approx(plain_norm, rel=1e-4)


TYPES = [
    *("albert", "deberta-v2", "distilbert", "electra", "esm", "modernbert", "roberta", "rembert"),
]


@each("model_type", TYPES)
def test_heads_of_other_classes_are_their_own(model_type):
    job = masked_job(of_type(model_type))
    alone = model_type in {"deberta-v2", "rembert"}
    for chunks in (1, 2):
        strategy = make_strategy(
            micro_batch=4, attention="eager" if alone else "sdpa", loss_chunks=chunks
        )
        program = build_program(job, strategy, CPU)
        (batch,), _ = batches_of(job, 4).step_at(START)
        plain = AutoModelForMaskedLM.from_config(program.model.config, attn_implementation="eager")
        plain.load_state_dict(program.model.state_dict())
        with torch.no_grad():
            loss = plain.eval()(input_ids=batch.inputs, labels=batch.labels).loss
        assert evaluate(program, [batch]) == pytest.approx(float(loss), rel=1e-5)


def test_a_described_encoder_is_laid_out_with_its_head():
    for tied in (True, False):
        model = make_other_model("bert", tie_word_embeddings=tied)
        job = masked_job(model)
        skeleton = build_skeleton(job, make_strategy())
        told = [(each.name, each.shape) for each in all_parameters(layout_of(job.model))]
        assert told == [(name, tuple(p.shape)) for name, p in skeleton.named_parameters()]
    assert for_task(job.model, "sequence-classification") == model


def test_what_hides_nothing_is_refused():
    canine = read_config("canine", {"model_type": "canine", **SIZES})
    for model, facts in (
        (make_model("llama"), ("both sides", "causal-lm")),
        (make_other_model("t5"), ("leave out the encoder",)),
        (canine, ("canine", "sequence-classification")),
    ):
        with pytest.raises(UnsupportedError) as raised:
            for_task(model, "masked-lm")
        assert all(fact in str(raised.value) for fact in facts)


LARGE = {
    **OFF, "hidden_size": 128, "intermediate_size": 344, "vocab_size": 8000,
    "max_position_embeddings": 256,
}  # fmt: skip
MEASURED = [
    ("fp32", {"micro_batch": 4}),
    ("bf16-mixed", {"micro_batch": 2, "activation_checkpointing": "full"}),
    ("fp32", {"micro_batch": 4, "loss_chunks": 4}),
]


@each("case", MEASURED)
def test_the_simulated_peak_is_the_measured_one(case):
    precision, switches = case
    job = masked_job(
        make_other_model("bert", **LARGE), precision=precision, seq_len=128, global_batch=4
    )
    strategy = make_strategy(**switches)
    batches, _ = batches_of(job, strategy.micro_batch).step_at(START)
    measured = meter_steps(job, strategy, batches).measured_peak_allocated_bytes
    simulated = simulate(job, make_cluster("cpu"), strategy).simulated_peak_allocated_bytes
    assert simulated == pytest.approx(measured, rel=1e-3)
