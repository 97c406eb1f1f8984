"""A Python module whose ``planned()`` torchtitan takes: ``--module THIS_FILE --config planned``.

torchtitan's configurations are functions of Python that return a ``Trainer.Config``; it has no
other file. A model is one of its own, by family and size.

Source: ``torchtitan/config/configs.py``, ``config/manager.py``, ``trainer.py``,
``components/optimizer/{optimizer,lr_scheduler}.py`` and ``models/*/config_registry.py`` of
torchtitan 0.3.0.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from brimful.export.deepspeed import COSINE_ENDS_AT
from brimful.export.given import Exported, Given, header
from brimful.export.lost import Lost, lost, refuse, unsaid
from brimful.export.torchrun import workers
from brimful.techniques.offload import away_of
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS
from brimful.techniques.parallel.stages import Schedule
from brimful.values.job import Job, Precision
from brimful.values.plan import Plan
from brimful.values.strategy import (
    COMPILED,
    Strategy,
    gathers,
    is_selective,
    num_checkpointed,
    num_micro_batches,
    recompute_of,
)

TO = "torchtitan"
FILE, FUNCTION = "plan_titan", "planned"
"""The module's name, and the function in it: as torchtitan is told them."""
MODELS = {
    "llama-3.2-1b": ("llama3", "1B"),
    "llama-3.2-3b": ("llama3", "3B"),
    "llama-3.1-8b": ("llama3", "8B"),
    "llama-3.1-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "qwen3-0.6b": ("qwen3", "0.6B"),
    "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-4b": ("qwen3", "4B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
}
"""Our names, and torchtitan's families and sizes of the same dimensions."""
SCHEDULES: dict[Schedule, str] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
_TYPES: dict[Precision, tuple[str, str]] = {
    "fp32": ("float32", "float32"),
    "tf32": ("float32", "float32"),
    "bf16": ("bfloat16", "bfloat16"),
    "bf16-mixed": ("float32", "bfloat16"),
}
"""Of parameters, and of the forward pass."""
COMPONENTS = {"model": "blocks", "loss": "loss"}
"""What it compiles, and ours of it."""
_MASKED = frozenset({"flex", "varlen"})
_SAID = (
    "model", "task", "seq_len", "global_batch", "micro_batch", "num_steps", "learning_rate",
    "schedule", "warmup_steps", "weight_decay", "beta1", "beta2", "epsilon", "clip", "seed",
    "precision", "optimizer", "dp_replicate", "dp_shard", "tp", "ep", "pp", "pp_schedule",
    "activation_checkpointing", "loss_chunks", "offload", "zero", "compile",
)  # fmt: skip


class _Parts(NamedTuple):
    """Pieces of the module that are not a keyword's value."""

    imports: tuple[str, ...]
    loss: str
    checkpointing: str


def text(plan: Plan, given: Given) -> Exported:
    """Return the module, and what it does not say.

    Raises UnsupportedError: torchtitan would train something else.
    """
    refuse(plan, TO, _refused(plan))
    found = losses(plan)
    lines = [*header(plan, given, TO, found), *_start(plan), *_module(plan), ""]
    return Exported(partial("\n".join, lines), found)


def _refused(plan: Plan) -> Iterator[tuple[str, str]]:
    job, strategy = plan.job, plan.strategy
    if job.model.name not in MODELS:
        yield f"model {job.model.name}", f"use one of {', '.join(MODELS)}"
    if job.task != "causal-lm":
        yield f"task={job.task}", "use task=causal-lm"
    if job.method != "full":
        yield f"method={job.method}", "use method=full"
    if job.precision not in _TYPES:
        yield f"precision={job.precision}", f"use {' or '.join(_TYPES)}"
    if not OPTIMIZERS[job.optimizer].titan:
        yield f"optimizer={job.optimizer}", f"use optimizer={DEFAULT}"
    away = away_of(strategy.offload, num_layers=job.model.num_layers)
    if away.optimizer and not gathers(strategy):
        yield f"offload={strategy.offload} without FSDP", "use offload=none"


def _start(plan: Plan) -> list[str]:
    each = " ".join(workers(plan))
    what = f"-m torchtitan.train --module {FILE} --config {FUNCTION}"
    return [
        f"# named {FILE}.py and in a folder of PYTHONPATH, it is started on each machine by",
        f"#   torchrun --standalone {each} {what}"
        if plan.cluster.num_nodes == 1
        else f"#   torchrun --nnodes {plan.cluster.num_nodes} {each} --rdzv-backend c10d "
        "--rdzv-endpoint node0:29500",
        *([] if plan.cluster.num_nodes == 1 else [
            f"#     {what}",
        ]),
        "",
    ]  # fmt: skip


def _compiled(plan: Plan) -> str:
    """List what is compiled, in its words; empty: nothing. Its model is each block by itself."""
    parts = COMPILED[plan.strategy.compile]
    named = [f'"{name}"' for name, part in COMPONENTS.items() if part in parts]
    return f"[{', '.join(named)}]" if named else ""


def _module(plan: Plan) -> list[str]:
    family, size = MODELS[plan.job.model.name]
    parts, compiled = _parts(plan), _compiled(plan)
    sections = ["CompileConfig"] * bool(compiled)
    sections += ["DebugConfig", "ParallelismConfig", "TrainingConfig"]
    imports = [
        "from torchtitan.components.optimizer import (",
        "    LRSchedulersContainer,",
        "    OptimizersContainer,",
        "    ParamGroupConfig,",
        ")",
        f"from torchtitan.config import {', '.join(sections)}",
        "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
        f"from torchtitan.models.{family} import model_registry",
        "from torchtitan.trainer import Trainer",
        *parts.imports,
    ]
    backend = plan.strategy.attention if plan.strategy.attention in _MASKED else "flex"
    body = [
        f'        model_spec=model_registry("{size}", attn_backend="{backend}"),',
        f'        hf_assets_path="./assets/hf/{plan.job.model.name}",',
        '        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),  # yours',
        *_section("optimizer", "OptimizersContainer.Config", _optimizer(plan.job)),
        *_section("lr_scheduler", "LRSchedulersContainer.Config", _schedule(plan.job)),
        *_section("training", "TrainingConfig", _training(plan)),
        *_section("parallelism", "ParallelismConfig", _degrees(plan.strategy)),
        f"        activation_checkpoint={parts.checkpointing},",
        f"        loss={parts.loss},",
        *(
            [f"        compile=CompileConfig(enable=True, components={compiled}),"]
            if compiled
            else []
        ),
        f"        debug=DebugConfig(seed={plan.job.seed}),",
    ]
    return [
        *sorted(imports[5:]), *imports[:5], "", "",
        f"def {FUNCTION}() -> Trainer.Config:",
        '    """Return what brimful planned."""',
        "    return Trainer.Config(", *body, "    )",
    ]  # fmt: skip


def _section(name: str, kind: str, values: dict[str, str]) -> list[str]:
    inner = [f"            {key}={value}," for key, value in values.items()]
    return [f"        {name}={kind}(", *inner, "        ),"]


def _optimizer(job: Job) -> dict[str, str]:
    """Two groups: the names of norms and biases, which do not decay, come first."""
    rule = OPTIMIZERS[job.optimizer]
    both = f'"lr": {job.learning_rate}, "betas": ({job.beta1}, {job.beta2}), "eps": {job.epsilon}'
    groups = ((r"norm|\.bias$", 0.0), (".*", job.weight_decay))
    spelled = [
        f'ParamGroupConfig(pattern=r"{pattern}", optimizer_name="{rule.words}", '
        f'optimizer_kwargs={{{both}, "weight_decay": {decay}}})'
        for pattern, decay in groups
    ]
    lines = "".join(f"\n                {group}," for group in spelled)
    return {
        "implementation": f'"{rule.titan}"',
        "param_groups": f"[{lines}\n            ]",
    }


def _schedule(job: Job) -> dict[str, str]:
    """Without a share of the steps to fall in, it falls from the warm-up on."""
    values = {"warmup_steps": str(job.warmup_steps)}
    if job.schedule == "constant":
        return values | {"decay_ratio": "0.0"}
    floor = COSINE_ENDS_AT if job.schedule == "cosine" else 0.0
    return values | {"decay_type": f'"{job.schedule}"', "min_lr_factor": str(floor)}


def _training(plan: Plan) -> dict[str, str]:
    job, strategy = plan.job, plan.strategy
    held, forward = _TYPES[job.precision]
    local = strategy.micro_batch * (num_micro_batches(job, strategy) if strategy.pp > 1 else 1)
    away = away_of(strategy.offload, num_layers=job.model.num_layers)
    return {
        "local_batch_size": str(local),
        "global_batch_size": str(job.global_batch),
        "seq_len": str(job.seq_len),
        "max_norm": str(job.clip) if job.clip else 'float("inf")',
        "steps": str(job.num_steps),
        "enable_cpu_offload": str(away.optimizer),
        "disable_cuda_graphs": "True",
        "dtype": f'"{held}"',
        "mixed_precision_param": f'"{forward}"',
    }


def _degrees(strategy: Strategy) -> dict[str, str]:
    is_split = strategy.zero != 1
    shard = strategy.dp_shard if is_split else 1
    replicate = strategy.dp_replicate if is_split else strategy.dp_shard
    values = {
        "data_parallel_replicate_degree": str(replicate),
        "data_parallel_shard_degree": str(shard),
        "tensor_parallel_degree": str(strategy.tp),
        "expert_parallel_degree": str(strategy.ep),
        "pipeline_parallel_degree": str(strategy.pp),
    }
    if gathers(strategy):
        policy = "never" if strategy.zero == 2 else "always"  # noqa: PLR2004 - ZeRO-2
        values["fsdp_reshard_after_forward"] = f'"{policy}"'
    if strategy.pp > 1:
        values["pipeline_parallel_schedule"] = f'"{SCHEDULES[strategy.pp_schedule]}"'
        values["pipeline_parallel_microbatch_size"] = str(strategy.micro_batch)
    return values


def _parts(plan: Plan) -> _Parts:
    strategy, imports = plan.strategy, []
    loss = "CrossEntropyLoss.Config(global_vocab_size=%d)" % plan.job.model.vocab_size  # noqa: UP031
    names = ["CrossEntropyLoss"]
    if strategy.loss_chunks > 1:
        names.insert(0, "ChunkedLossWrapper")
        loss = f"ChunkedLossWrapper.Config(num_chunks={strategy.loss_chunks}, loss_fn={loss})"
    imports.append(f"from torchtitan.components.loss import {', '.join(names)}")
    checkpointing = "None"
    if num_checkpointed(strategy, num_layers=plan.job.model.num_layers):
        kind = "SelectiveAC" if is_selective(strategy) else "FullAC"
        imports.append(f"from torchtitan.distributed.activation_checkpoint import {kind}")
        checkpointing = f"{kind}.Config()"
    return _Parts(tuple(imports), loss, checkpointing)


def own_stages(strategy: Strategy) -> int:
    """Return the stages of a device by torchtitan's rule: one, or two where a schedule has more."""
    return 1 if strategy.pp_schedule in {"gpipe", "1f1b"} else 2


def losses(plan: Plan) -> tuple[Lost, ...]:
    """List what the module does not say, or says in part."""
    said = set(_SAID)
    if plan.strategy.attention in _MASKED:
        said |= {"attention"}
    if plan.job.packing == "documents":
        said |= {"packing"}
    if plan.strategy.pp > 1 or plan.strategy.accumulate == "reduce-each":
        said |= {"accumulate"}
    whys = {
        "packing": "its rows are packed documents, kept apart by a mask",
        "attention": "its language models have flex or varlen; flex is written",
        "weights": "its checkpoint section loads them",
        "stages_per_device": "it counts stages by its own rule",
        "stage_blocks": "it lays blocks out by its own rule",
        "router_aux_loss": "its routers are balanced by a bias",
        "accumulate": "it reduces after every micro-batch",
    }
    return (*unsaid(plan, said, whys), *_in_part(plan))


def _in_part(plan: Plan) -> Iterator[Lost]:
    job, strategy, layers = plan.job, plan.strategy, plan.job.model.num_layers
    blocks = num_checkpointed(strategy, num_layers=layers)
    if 0 < blocks < layers:
        yield lost(plan, "activation_checkpointing", "it recomputes every block or none")
    if recompute_of(strategy) == "selective":
        yield lost(plan, "activation_checkpointing", "its list of what is kept is its own")
    if strategy.zero == 1:
        yield lost(plan, "zero", "it has no ZeRO-1: the optimizer's state is whole on each device")
    if strategy.offload not in {"none", "parameters"}:
        yield lost(plan, "offload", "parameters, gradients and state are on the host all or none")
    if job.schedule == "cosine":
        yield lost(plan, "schedule", "its cosine falls one step later")
    if job.precision == "tf32":
        yield lost(plan, "precision", "the program sets torch.backends.cuda.matmul.allow_tf32")
