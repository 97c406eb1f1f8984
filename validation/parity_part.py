"""Every switch that claims to be exact, against the plain fp32 loop on ragged masked samples."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import torch
from evidence import Case, ParityRow, Summary, describe_case, relative
from parity_summary import LOSS_BAR, NORM_BAR, parity_summary
from plain_loop import Step, plain_run
from progress import shown
from ragged import batches_of, samples_of

from brimful.build.assemble import build_program
from brimful.build.batch import count_targets
from brimful.build.program import Program
from brimful.build.step import train_step
from brimful.models.config import load_model, read_config
from brimful.models.kernels import attentions_of
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Adapter, Job, check_job, plain_job
from brimful.values.strategy import Strategy

NUM_STEPS = 20
GLOBAL_BATCH, SEQ_LEN = 4, 24
NUM_QUICK_CASES = 4
_WIDTHS = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 97}
_T5 = {
    "d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4, "num_layers": 2, "vocab_size": 97,
    "decoder_start_token_id": 0, "pad_token_id": 0,
    # Smooth: of 20 steps with ReLU one had a unit within 2e-7 of its kink, where rounding decides
    # the gradient (3e-5 of its norm, and Adam makes 4e-3 of that in 8 more steps).
    "feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu",
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_WIDTHS, "intermediate_size": 80, "num_key_value_heads": 2},
    "gpt2": {
        "n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 97, "n_positions": 64,
        "bos_token_id": None, "eos_token_id": None,
    },
    "bert": {**_WIDTHS, "intermediate_size": 64, "num_labels": 3, "pad_token_id": 0},
    "t5": _T5,
    "switch_transformers": {
        **_T5, "num_experts": 4, "expert_capacity": 256, "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1, "router_z_loss_coef": 0.0, "router_aux_loss_coef": 0.0,
    },
}  # fmt: skip
_TASKS = {
    "llama": "causal-lm",
    "gpt2": "causal-lm",
    "bert": "sequence-classification",
    "t5": "seq2seq",
    "switch_transformers": "seq2seq",
}
ADAPTER = Adapter(
    rank=4,
    alpha=8.0,
    targets=("all-linear",),
    trained_modules=(),
    dtype="same",
    base="same",
    upcast="none",
    input_requires_grad=False,
)


class Switched(NamedTuple):
    """A job, and a strategy that claims to leave its mathematics alone."""

    job: Job
    strategy: Strategy


def cases() -> tuple[Switched, ...]:
    """List every switch for every kind of job that has it, at micro-batches of 1, 2 and 4."""
    return tuple(
        Switched(check_job(job), check_strategy(job, strategy))
        for job, switches in _jobs()
        for micro_batch in (1, 2, 4)
        for strategy in _strategies(job, micro_batch, switches)
        if strategy.micro_batch == micro_batch  # what fixes it is there once
    )


_NONE: dict[str, Any] = {}
_DECODER: tuple[dict[str, Any], ...] = (
    _NONE,
    {"activation_checkpointing": "full"},
    {"activation_checkpointing": "full:2"},
    {"activation_checkpointing": "selective"},
    {"loss_chunks": 3},
    {"attention": "eager"},
    {"activation_checkpointing": "selective:1", "loss_chunks": 4},
)
_PACKED: tuple[dict[str, Any], ...] = (
    _NONE,
    {"activation_checkpointing": "full", "loss_chunks": 2},
    {"activation_checkpointing": "selective"},
    {"attention": "eager"},
)
_FEW: tuple[dict[str, Any], ...] = (
    _NONE,
    {"activation_checkpointing": "full"},
    {"offload": "parameters:1,activations"},
)
_AWAY: tuple[dict[str, Any], ...] = (
    {"offload": "optimizer"},
    {"offload": "optimizer", "accumulate": "hold"},
    {"offload": "parameters"},
    {"offload": "parameters:2,activations:1", "activation_checkpointing": "full:1"},
    {"offload": "activations", "activation_checkpointing": "full"},
    {"offload": "parameters,activations", "activation_checkpointing": "selective"},
)
_EARLY: tuple[dict[str, Any], ...] = (
    {"optimizer_in_backward": True, "micro_batch": GLOBAL_BATCH},
    {"optimizer_in_backward": True, "micro_batch": GLOBAL_BATCH, "offload": "activations",
     "activation_checkpointing": "full:1"},
)  # fmt: skip
"""Of one micro-batch, whatever is asked for: of several it would not be exact."""


def _jobs() -> Iterator[tuple[Job, tuple[dict[str, Any], ...]]]:
    for model_type in ("llama", "gpt2"):
        for packing, switches in (("none", _DECODER), ("documents", _PACKED), ("wrapped", _FEW)):
            yield _job(model_type, packing=packing), switches
        for method in ("lora", "dora"):
            yield _job(model_type, method=method, adapter=ADAPTER), _FEW
        yield _job(model_type), _AWAY
        for optimizer in ("adamw-foreach", "sgd"):
            yield _job(model_type, optimizer=optimizer), (_NONE, _AWAY[0])
        for optimizer in ("adamw", "adafactor"):
            yield _job(model_type, optimizer=optimizer, clip=0.0), _EARLY
    for model_type in ("bert", "t5", "switch_transformers"):
        yield _job(model_type), _FEW
    module = load_model("plain_module:build")
    yield _plain(module, task="module", seq_len=1), (_NONE, _AWAY[0])


def _job(model_type: str, **changes: Any) -> Job:
    config = {"model_type": model_type, **CONFIGS[model_type]}
    model = read_config(f"tiny-{model_type}", config)
    return _plain(model, task=_TASKS[model_type], seq_len=SEQ_LEN, **changes)


def _plain(model: Any, **changes: Any) -> Job:
    fields = {"packing": "none", "global_batch": GLOBAL_BATCH, "num_steps": NUM_STEPS, "seed": 5}
    return plain_job(model, **{**fields, "learning_rate": 1e-3, **changes})


def _strategies(
    job: Job, micro_batch: int, switches: tuple[dict[str, Any], ...]
) -> Iterator[Strategy]:
    plain = Strategy(
        micro_batch=micro_batch,
        activation_checkpointing="none",
        loss_chunks=1,
        attention="sdpa" if "sdpa" in attentions_of(job) else "eager",
    )
    yield from (msgspec.structs.replace(plain, **switch) for switch in switches)


def run(*, seed: int, quick: bool) -> tuple[list[ParityRow], Summary]:
    """Train every case beside the plain loop; nothing is drawn."""
    del seed
    every = cases()
    chosen = every[:: len(every) // NUM_QUICK_CASES] if quick else every
    rows = [compare(case) for case in shown("parity", chosen)]
    return rows, summarize(rows)


def compare(case: Switched) -> ParityRow:
    """Train one case and the plain loop from the same weights, on the same samples."""
    program = build_program(case.job, case.strategy, torch.device("cpu"))
    plain = _plain_steps(case.job, program.model.state_dict())
    ours = [_our_step(program, step) for step in range(NUM_STEPS)]
    pairs = list(zip(ours, plain, strict=True))
    return ParityRow(
        case=Case(job=case.job, strategy=case.strategy, kernels="cpu"),
        num_steps=NUM_STEPS,
        loss_error=max(abs(relative(one[0], other[0])) for one, other in pairs),
        norm_error=max(abs(relative(one[1], other[1])) for one, other in pairs),
    )


_KNOWN: dict[bytes, list[Step]] = {}


def _plain_steps(job: Job, weights: dict[str, torch.Tensor]) -> list[Step]:
    """Run the plain loop once for a job; its first weights hang on nothing but the job."""
    key = msgspec.json.encode(job)
    if key not in _KNOWN:
        prefix = "model." if job.task == "module" else ""
        copied = {name.removeprefix(prefix): value.clone() for name, value in weights.items()}
        _KNOWN[key] = plain_run(job, copied, num_steps=NUM_STEPS).steps
    return _KNOWN[key]


def _our_step(program: Program, step: int) -> Step:
    samples = samples_of(program.job, step=step)
    batches = batches_of(program.job, samples, micro_batch=program.strategy.micro_batch)
    rate, num_targets = program.job.learning_rate, count_targets(batches)
    result = train_step(program, batches, num_targets=num_targets, learning_rate=rate)
    return float(result.loss), float(result.grad_norm)


def summarize(rows: list[ParityRow]) -> Summary:
    """Sum up, and say which cases miss a bar."""
    return parity_summary(
        rows,
        f"loss within {LOSS_BAR:g} and gradient norm within {NORM_BAR:g} of the plain fp32 "
        f"loop's in each of {NUM_STEPS} steps",
        describe=lambda row: describe_case(row.case),
    )
