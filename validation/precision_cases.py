"""Faults that are planted into programs, and programs that nothing is wrong with."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from cases import Case
from parity_part import ADAPTER, CONFIGS
from ragged import batches_of, samples_of

from brimful.build.batch import count_targets
from brimful.build.parallel.place import own_part
from brimful.build.program import Program
from brimful.doctor.program import PlainStep
from brimful.models.config import load_model, read_config
from brimful.models.kernels import attentions_of
from brimful.techniques.runnable import check_strategy
from brimful.values.job import SCALED, Job, LossScale, check_job, plain_job
from brimful.values.strategy import Strategy, data_parallel

NUM_STEPS, SEQ_LEN = 6, 24
RATE = 1e-3
_SCALE = LossScale(
    initial_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
)
_MIXTURE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97, "num_local_experts": 4, "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
}  # fmt: skip
_ALL = {**CONFIGS, "mixtral": _MIXTURE}
_TASKS = {"bert": "sequence-classification", "t5": "seq2seq", "switch_transformers": "seq2seq"}
Plant = Callable[[Program, list[PlainStep]], list[PlainStep]]
"""Puts a fault into a program, or into what it learns from."""


class Expected(NamedTuple):
    """What the doctor must name; ``name`` None: whichever, ``ranks`` None: one process."""

    fault: str
    name: str | None
    kind: str
    ranks: tuple[int, ...] | None = None


class Planted(NamedTuple):
    """A case, what is wrong with it, and what must be said: nothing where that is None."""

    label: str
    case: Case
    plant: Plant
    expected: Expected | None


def steps_of(case: Case) -> list[PlainStep]:
    """Make a case's own part of its steps."""
    found = []
    for step in range(NUM_STEPS):
        samples = samples_of(case.job, step=step)
        batches = batches_of(case.job, samples, micro_batch=case.strategy.micro_batch)
        own = own_part(batches, case.strategy)
        found.append(PlainStep(micro_batches=own, num_targets=count_targets(batches)))
    return found


def make_case(kind: str, precision: str, *, ways: dict[str, Any] | None = None, **job: Any) -> Case:
    """Make a tiny case.

    Args:
        kind: A type of model, or ``cnn``.
        precision: The recipe.
        ways: Fields of the strategy.
        job: Fields of the job.
    """
    ways, batch = ways or {}, 4
    if kind == "cnn":
        model = load_model("plain_module:build")
        fields = {"task": "module", "seq_len": 1}
    else:
        config = {"model_type": kind, **_ALL[kind]}
        if ways.get("tp", 1) > 1:
            config |= {"num_key_value_heads": 4, "vocab_size": 96}
        model = read_config(f"tiny-{kind}", config)
        fields = {"task": _TASKS.get(kind, "causal-lm"), "seq_len": SEQ_LEN}
    plain = Strategy(
        micro_batch=2, activation_checkpointing="none", loss_chunks=1, attention="sdpa"
    )
    strategy = Strategy(**{**{f: getattr(plain, f) for f in plain.__struct_fields__}, **ways})
    batch = max(4, 2 * strategy.micro_batch * data_parallel(strategy))
    asked = {
        "packing": "none", "global_batch": batch, "num_steps": NUM_STEPS, "learning_rate": RATE,
        "warmup_steps": 0, "schedule": "constant", "seed": 5, "precision": precision,
        "loss_scale": _SCALE if precision in SCALED else None,
        "epsilon": 1e-4 if precision == "fp16" else 1e-8,
    }  # fmt: skip
    made: Job = plain_job(model, **{**asked, **fields, **job})
    if "sdpa" not in attentions_of(made):
        strategy = Strategy(**{
            **{f: getattr(strategy, f) for f in strategy.__struct_fields__}, "attention": "eager",
        })  # fmt: skip
    return Case(job=check_job(made), strategy=check_strategy(made, strategy), kernels="cpu")


# Ways to plant.


def nothing(_program: Program, steps: list[PlainStep]) -> list[PlainStep]:
    """Leave all as it is."""
    return steps


def _module(program: Program, name: str) -> Any:
    return program.loss if name == "loss" else program.model.get_submodule(name)


def times(factor: float, *names: str) -> Plant:
    """Multiply weights."""

    def plant(program: Program, steps: list[PlainStep]) -> list[PlainStep]:
        with torch.no_grad():
            for name in names:
                program.model.get_parameter(name).mul_(factor)
        return steps

    return plant


def written(value: float, name: str, *, row: int | None = None) -> Plant:
    """Write one number into all of a weight, into a row of it, or into its first place."""

    def plant(program: Program, steps: list[PlainStep]) -> list[PlainStep]:
        weight = program.model.get_parameter(name)
        with torch.no_grad():
            if row is not None:
                weight[row] = value
            elif math.isfinite(value):
                weight.fill_(value)
            else:
                weight.view(-1)[0] = value
        return steps

    return plant


def output(change: Callable[[torch.Tensor], torch.Tensor], name: str, rank: int = 0) -> Plant:
    """Change what a module returns, on one process."""

    def plant(program: Program, steps: list[PlainStep]) -> list[PlainStep]:
        if own_rank() == rank:
            _module(program, name).register_forward_hook(lambda _m, _args, out: change(out))
        return steps

    return plant


def gradient(factor: float, name: str, rank: int = 0) -> Plant:
    """Multiply the gradient that arrives at a module's output, on one process."""

    def hook(_module: Any, _args: Any, out: torch.Tensor) -> None:
        if out.requires_grad:
            out.register_hook(lambda arrived: arrived * factor)

    def plant(program: Program, steps: list[PlainStep]) -> list[PlainStep]:
        if own_rank() == rank:
            _module(program, name).register_forward_hook(hook)
        return steps

    return plant


def each_step(factor: float, name: str) -> Plant:
    """Multiply a weight after every update."""

    def plant(program: Program, steps: list[PlainStep]) -> list[PlainStep]:
        weight = program.model.get_parameter(name)

        def grow(*_told: Any) -> None:
            with torch.no_grad():
                weight.mul_(factor)

        program.optimizer.register_step_post_hook(grow)
        return steps

    return plant


def in_data(value: float, step: int) -> Plant:
    """Write a number into one sample."""

    def plant(_program: Program, steps: list[PlainStep]) -> list[PlainStep]:
        batch = steps[step].micro_batches[0]
        batch.inputs.view(-1)[3] = value
        return steps

    return plant


def narrow_variance(name: str) -> Plant:
    """Let a norm square what it is given in its own type, and let what it is given be large."""

    def forward(norm: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(hidden: torch.Tensor) -> torch.Tensor:
            variance = hidden.pow(2).mean(-1, keepdim=True)
            return norm.weight * (hidden * torch.rsqrt(variance + 1e-6))

        return run

    def plant(program: Program, steps: list[PlainStep]) -> list[PlainStep]:
        norm = _module(program, name)
        norm.forward = forward(norm)
        return times(1e5, "model.embed_tokens.weight")(program, steps)

    return plant


def log_of_zero(program: Program, steps: list[PlainStep]) -> list[PlainStep]:
    """Take the loss's logarithm of probabilities, of which some are 0."""

    def summed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        certain = torch.softmax(1e6 * logits.float(), 1)
        return -torch.log(certain[torch.arange(len(labels)), labels.clamp(min=0)]).sum()

    program.loss.summed = summed
    return steps


def together(*plants: Plant) -> Plant:
    """Plant several."""

    def plant(program: Program, steps: list[PlainStep]) -> list[PlainStep]:
        for one in plants:
            steps = one(program, steps)
        return steps

    return plant


def own_rank() -> int:
    """Return this process's rank."""
    return dist.get_rank() if dist.is_initialized() else 0


# What is planted.

_INF, _NAN = float("inf"), float("nan")
_LAYER, _BLOCK = "model.layers.1", "transformer.h.1"
_EAGER = {"attention": "eager"}


def _scaled(initial_scale: float) -> dict[str, Any]:
    scale = LossScale(
        initial_scale=initial_scale, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
    )
    return {"loss_scale": scale}


def faults() -> tuple[Planted, ...]:
    """List the faults of one process."""
    attention = times(3e3, f"{_LAYER}.self_attn.q_proj.weight", f"{_LAYER}.self_attn.k_proj.weight")
    blown = Expected("not-finite", f"{_LAYER}.self_attn", "activation")
    return (
        Planted("attention logits overflow, fp16-mixed",
            make_case("llama", "fp16-mixed", ways=_EAGER), attention, blown),
        Planted("attention logits overflow, fp16-master",
            make_case("llama", "fp16-master", ways=_EAGER), attention, blown),
        Planted("attention logits overflow, gpt2",
            make_case("gpt2", "fp16-mixed", ways=_EAGER),
            times(3e3, f"{_BLOCK}.attn.c_attn.weight"),
            Expected("not-finite", f"{_BLOCK}.attn", "activation")),
        Planted("one layer's gradients underflow, fp16-mixed", make_case("llama", "fp16-mixed"),
            gradient(2.0**-34, f"{_LAYER}.mlp.down_proj"),
            Expected("underflow", f"{_LAYER}.mlp.down_proj", "output-gradient")),
        Planted("one layer's gradients underflow, fp16-master", make_case("gpt2", "fp16-master"),
            gradient(2.0**-34, f"{_BLOCK}.attn.c_proj"),
            Expected("underflow", f"{_BLOCK}.attn.c_proj", "output-gradient")),
        Planted("one layer's gradients underflow, bert", make_case("bert", "fp16-mixed"),
            gradient(2.0**-34, "bert.encoder.layer.0.attention.output.dense"),
            Expected("underflow", "bert.encoder.layer.0.attention.output.dense",
                "output-gradient")),
        Planted("norm variance overflow, fp16-master", make_case("llama", "fp16-master"),
            narrow_variance(f"{_LAYER}.input_layernorm"),
            Expected("vanished", f"{_LAYER}.input_layernorm", "activation")),
        Planted("norm variance overflow, fp16", make_case("llama", "fp16"),
            narrow_variance(f"{_LAYER}.post_attention_layernorm"),
            Expected("vanished", f"{_LAYER}.post_attention_layernorm", "activation")),
        Planted("lost updates, bf16", make_case("llama", "bf16", learning_rate=3e-2),
            written(64.0, f"{_LAYER}.input_layernorm.weight"),
            Expected("lost-update", f"{_LAYER}.input_layernorm.weight", "update")),
        Planted("lost updates, fp16", make_case("llama", "fp16", learning_rate=3e-3),
            written(16.0, "model.layers.2.input_layernorm.weight"),
            Expected("lost-update", "model.layers.2.input_layernorm.weight", "update")),
        Planted("lost updates everywhere, bf16", make_case("gpt2", "bf16", learning_rate=1e-6),
            nothing, Expected("lost-update", None, "update")),
        Planted("router blow-up, switch", make_case("switch_transformers", "bf16-mixed"),
            times(1e5, "encoder.block.1.layer.1.mlp.router.classifier.weight"),
            Expected("router", "encoder.block.1.layer.1.mlp.router.classifier", "activation")),
        Planted("router blow-up, mixtral", make_case("mixtral", "bf16-mixed"),
            times(1e4, f"{_LAYER}.mlp.gate.weight"),
            Expected("router", f"{_LAYER}.mlp.gate", "activation")),
        Planted("Inf in data", make_case("cnn", "fp32"), in_data(_INF, 2),
            Expected("not-finite", "batch", "input")),
        Planted("NaN in data, fp16-mixed", make_case("cnn", "fp16-mixed"), in_data(_NAN, 3),
            Expected("not-finite", "batch", "input")),
        Planted("scale too high", make_case("llama", "fp16-mixed", **_scaled(2.0**40)), nothing,
            Expected("scale-too-high", None, "output-gradient")),
        Planted("scale too high, fp16-master", make_case("gpt2", "fp16-master", **_scaled(2.0**36)),
            nothing, Expected("scale-too-high", None, "output-gradient")),
        Planted("scale too low", make_case("llama", "fp16-mixed", **_scaled(2.0**-12)), nothing,
            Expected("scale-too-low", None, "gradient")),
        Planted("scale too low, fp16-master",
            make_case("llama", "fp16-master", **_scaled(2.0**-12)), nothing,
            Expected("scale-too-low", None, "gradient")),
        Planted("log(0) in the loss", make_case("cnn", "fp32"), log_of_zero,
            Expected("not-finite", "loss", "activation")),
        Planted("log(0) in a layer", make_case("cnn", "bf16-mixed"),
            output(lambda x: torch.log(torch.relu(x)), "model.4"),
            Expected("not-finite", "model.4", "activation")),
        Planted("exploding embedding", make_case("llama", "bf16-mixed"),
            each_step(8.0, "model.embed_tokens.weight"),
            Expected("exploding", "model.embed_tokens.weight", "weight")),
        Planted("a row of the embedding far out", make_case("gpt2", "fp32"),
            written(500.0, "transformer.wte.weight", row=9),
            Expected("outlier", "transformer.wte.weight", "weight")),
        Planted("NaN in a weight", make_case("gpt2", "bf16"),
            written(_NAN, f"{_BLOCK}.ln_1.weight"),
            Expected("not-finite", f"{_BLOCK}.ln_1.weight", "weight")),
        Planted("Inf in a gradient, fp32", make_case("llama", "fp32"),
            gradient(_INF, f"{_LAYER}.mlp.down_proj"),
            Expected("not-finite", f"{_LAYER}.mlp.down_proj", "output-gradient")),
        Planted("NaN in a scaled gradient, whatever the scale", make_case("llama", "fp16-mixed"),
            gradient(_NAN, f"{_LAYER}.self_attn.o_proj"),
            Expected("not-finite", f"{_LAYER}.self_attn.o_proj", "output-gradient")),
        Planted("a layer overflows fp16", make_case("llama", "fp16-mixed"),
            together(written(3e4, f"{_LAYER}.mlp.down_proj.weight"),
                times(1e3, f"{_LAYER}.mlp.up_proj.weight")),
            Expected("not-finite", f"{_LAYER}.mlp.down_proj", "activation")),
        Planted("a layer overflows fp16, t5", make_case("t5", "fp16-mixed"),
            times(1e7, "encoder.block.1.layer.1.DenseReluDense.wi_1.weight"),
            Expected("not-finite", "encoder.block.1.layer.1.DenseReluDense.wi_1", "activation")),
        Planted("a head overflows fp16, bert", make_case("bert", "fp16-mixed"),
            times(1e8, "classifier.weight"), Expected("not-finite", "classifier", "activation")),
        Planted("an adapter overflows fp16",
            make_case("llama", "fp16-mixed", method="lora", adapter=ADAPTER),
            written(6e4, f"{_LAYER}.mlp.up_proj.lora_B.default.weight"),
            Expected("not-finite", f"{_LAYER}.mlp.up_proj.lora_B.default",
                "activation")),
        Planted("a layer one batch away from 65504", make_case("llama", "fp16-master"),
            output(lambda x: x + 4e4, f"{_LAYER}.mlp.down_proj"),
            Expected("near-limit", f"{_LAYER}.mlp.down_proj", "activation")),
    )  # fmt: skip


def healthy() -> tuple[Planted, ...]:
    """List programs of one process that nothing is wrong with."""
    asked = (
        ("llama", "fp32", {}), ("llama", "bf16-mixed", {}), ("llama", "fp16-mixed", {}),
        ("llama", "bf16-master", {}), ("llama", "fp16-master", {}),
        ("llama", "bf16", {"learning_rate": 3e-2}), ("llama", "fp16", {"learning_rate": 3e-2}),
        ("gpt2", "bf16-mixed", {}), ("gpt2", "fp16-mixed", {}), ("gpt2", "fp16-master", {}),
        ("bert", "fp32", {}), ("bert", "fp16-mixed", {}), ("t5", "bf16-mixed", {}),
        ("switch_transformers", "bf16-mixed", {}), ("mixtral", "bf16-mixed", {}),
        ("mixtral", "fp16-mixed", {}), ("cnn", "fp32", {}), ("cnn", "fp16-mixed", {}),
        ("llama", "fp16-mixed", {"method": "lora", "adapter": ADAPTER}),
        ("llama", "fp16-mixed", {"packing": "documents"}),
    )  # fmt: skip
    return tuple(
        Planted(f"healthy {kind} {precision}", make_case(kind, precision, **job), nothing, None)
        for kind, precision, job in asked
    )


def group_faults() -> tuple[Planted, ...]:
    """List the faults of groups of processes: one of them is ill."""
    four, two = {"dp_replicate": 4}, {"dp_replicate": 2}
    name = f"{_LAYER}.mlp.down_proj"
    bad = "not-finite"
    return (
        Planted("Inf in a gradient of process 2 of 4, DDP", make_case("llama", "fp32", ways=four),
            gradient(_INF, name, rank=2), Expected(bad, name, "output-gradient", (2,))),
        Planted("NaN in an output of process 2 of 4, DDP, mixed",
            make_case("llama", "bf16-mixed", ways=four),
            output(lambda x: x * _NAN, f"{_LAYER}.mlp.up_proj", rank=2),
            Expected(bad, f"{_LAYER}.mlp.up_proj", "activation", (2,))),
        Planted("NaN in a scaled gradient of process 3 of 4, DDP",
            make_case("llama", "fp16-mixed", ways=four),
            gradient(_NAN, name, rank=3), Expected(bad, name, "output-gradient", (3,))),
        Planted("gradients of process 3 of 4 far apart, DDP", make_case("llama", "fp32", ways=four),
            gradient(2.0**20, name, rank=3),
            Expected("rank-apart", name, "output-gradient", (3,))),
        Planted("NaN in a gradient of process 2 of 4, ZeRO 3",
            make_case("llama", "bf16-mixed", ways={"dp_shard": 4, "zero": 3}),
            gradient(_NAN, name, rank=2), Expected(bad, name, "output-gradient", (2,))),
        Planted("NaN in a gradient of process 1 of 2, ZeRO 1",
            make_case("gpt2", "fp32", ways={"dp_shard": 2, "zero": 1}),
            gradient(_NAN, f"{_BLOCK}.mlp.c_proj", rank=1),
            Expected(bad, f"{_BLOCK}.mlp.c_proj", "output-gradient", (1,))),
        Planted("Inf in an output of process 1 of 2, ZeRO 2",
            make_case("llama", "fp16-mixed", ways={"dp_shard": 2, "zero": 2}),
            output(lambda x: x * _INF, f"{_LAYER}.self_attn.q_proj", rank=1),
            Expected(bad, f"{_LAYER}.self_attn.q_proj", "activation", (1,))),
        Planted("NaN in an output of process 1 of 2, tp",
            make_case("llama", "fp32", ways={"tp": 2}),
            output(lambda x: x * _NAN, f"{_LAYER}.mlp.up_proj", rank=1),
            Expected(bad, f"{_LAYER}.mlp.up_proj", "activation", (1,))),
        Planted("NaN in a gradient of process 2 of 4, tp x ZeRO 3",
            make_case("llama", "fp32", ways={"tp": 2, "dp_shard": 2, "zero": 3}),
            gradient(_NAN, f"{_LAYER}.mlp.up_proj", rank=2),
            Expected(bad, f"{_LAYER}.mlp.up_proj", "output-gradient", (2,))),
        Planted("healthy, DDP", make_case("llama", "fp16-mixed", ways=two), nothing, None),
        Planted("healthy, ZeRO 1", make_case("gpt2", "bf16-mixed",
            ways={"dp_shard": 2, "zero": 1}), nothing, None),
        Planted("healthy, ZeRO 3", make_case("llama", "fp16-mixed",
            ways={"dp_shard": 4, "zero": 3}), nothing, None),
        Planted("healthy, tp", make_case("llama", "bf16-mixed", ways={"tp": 2}), nothing, None),
        Planted("healthy, tp x ZeRO 3", make_case("llama", "fp16-mixed",
            ways={"tp": 2, "dp_shard": 2, "zero": 3}), nothing, None),
    )  # fmt: skip


# Loss scales.

SCRIPT = (True, False, True, True, True, True, False, False, True, True, True, True, True, True)
"""Of each step, whether its gradients are finite."""
SCRIPTED = LossScale(
    initial_scale=2.0**10, growth_factor=2.0, backoff_factor=0.5, growth_interval=3
)


def scale_cases() -> tuple[Case, ...]:
    """List the layouts on which all processes must skip together."""
    layouts: Sequence[dict[str, Any]] = (
        {}, {"dp_replicate": 2}, {"dp_shard": 2, "zero": 1}, {"dp_shard": 2, "zero": 3}, {"tp": 2},
        {"dp_replicate": 4}, {"dp_shard": 4, "zero": 2}, {"dp_shard": 4, "zero": 3},
        {"tp": 2, "dp_shard": 2, "zero": 3},
    )  # fmt: skip
    return tuple(
        make_case("llama", precision, ways=ways, loss_scale=SCRIPTED, num_steps=len(SCRIPT))
        for ways in layouts
        for precision in ("fp16-mixed", "fp16-master")
        if not (precision == "fp16-master" and ways.get("zero") == 1)
    )


def recurrence() -> list[tuple[float, bool]]:
    """Work out by hand which scale each step has, and whether it is skipped."""
    scale, good, found = SCRIPTED.initial_scale, 0, []
    for is_finite in SCRIPT:
        found.append((scale, not is_finite))
        if not is_finite:
            scale, good = scale / 2, 0
            continue
        good += 1
        if good == SCRIPTED.growth_interval:
            scale, good = scale * 2, 0
    return found
