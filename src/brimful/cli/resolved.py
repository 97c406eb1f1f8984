"""What was typed, resolved and checked: a Job, a Cluster and a Strategy."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import msgspec

from brimful.cli import defaults, usual
from brimful.cli.elsewhere import refuse_elsewhere
from brimful.cli.flags import ADAPTER, INFERENCE, JOB, LOSS_SCALE, QUANTIZATION, STRATEGY
from brimful.cli.flags import PREFERENCE as OF_PREFERENCE
from brimful.cli.named_gpus import noted_cluster
from brimful.cli.parsing import choice, note_once
from brimful.cli.run_length import batch_from, num_steps_from
from brimful.errors import InputError
from brimful.hardware.cluster import Cluster, Device, check_cluster
from brimful.hardware.datasheets import has_one_memory
from brimful.hardware.gpus import count_devices, labelled_bytes, load_cluster
from brimful.hardware.instances import network_of_instances
from brimful.hardware.names import machine_of, split_counts, with_memory
from brimful.models.config import default_task, for_task, load_model
from brimful.models.generic import has_masked_head
from brimful.models.name_parts import format_named
from brimful.models.names import taken_words
from brimful.models.own_task import is_encoder
from brimful.models.resized import with_num_labels, with_positions, with_vocab_size
from brimful.models.spec import ModelSpec
from brimful.models.targets import are_all_linear, check_targets
from brimful.techniques.exact import exactness
from brimful.techniques.fused_kernels import FusedKernels
from brimful.techniques.kernel_support import check_precision
from brimful.techniques.parallel.stages import ONE_STAGE
from brimful.techniques.parallel.stages import Schedule as PipelineSchedule
from brimful.techniques.quantization import Quantization, Scheme, default_group
from brimful.techniques.runnable import check_strategy, placed
from brimful.units import Labelled, Share
from brimful.values.job import (
    ALL_LINEAR,
    PACKINGS,
    PREFERENCE,
    QAT,
    QUANTIZED,
    SCALED,
    WHOLE,
    Adapter,
    Allowed,
    Base,
    Job,
    LossScale,
    Method,
    Optimizer,
    Precision,
    Preference,
    Task,
    check_job,
)
from brimful.values.plan import read_plan
from brimful.values.strategy import Attention, Strategy, Zero, default_accumulate, default_reference

PLAN_SUFFIXES = (".yaml", ".yml")
"""By these a plan is told from a model's config.json."""


class Asked(NamedTuple):
    """What the user asked about, resolved and checked."""

    job: Job
    cluster: Cluster
    strategy: Strategy


def asked(args: argparse.Namespace) -> Asked:
    """Resolve a model with flags, or a plan file, into checked values.

    Raises InputError: something given cannot be used, or flags stand beside a plan file.
    """
    if is_plan(args.model):
        refuse_flags(args)
        plan = read_plan(Path(args.model))
        usual.check_runs(plan.job, plan.strategy.attention, plan.cluster.device)
        return Asked(plan.job, plan.cluster, plan.strategy)
    cluster = cluster_from(args)
    job = job_from(args)
    return Asked(job, cluster, strategy_from(args, job, cluster))


def is_plan(model: str) -> bool:
    """Whether what stands where a model may stand is a plan file."""
    return Path(model).suffix in PLAN_SUFFIXES


def refuse_flags(args: argparse.Namespace) -> None:
    """Refuse job and strategy flags beside a plan file."""
    for name in (
        *JOB,
        *STRATEGY,
        "gpus",
        "network",
        "memory_limit",
        "card_memory",
        "host_memory",
    ):
        if getattr(args, name, None) is not None:
            raise InputError(
                f"--{name.replace('_', '-')} stands beside the plan {args.model}, which already "
                f"says it; edit the plan or give a model"
            )


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def cluster_from(args: argparse.Namespace) -> Cluster:
    """Resolve ``--gpus``, ``--network`` and the sizes of memories."""
    name = _or(args.gpus, defaults.GPUS)
    if isinstance(args.card_memory, Labelled):
        name = with_memory(name, args.card_memory)
    share = args.memory_limit if isinstance(args.memory_limit, Share) else None
    cluster = load_cluster(
        name,
        memory_limit_bytes=args.memory_limit if share is None else None,
        card_memory_bytes=card_bytes(args),
        network_name=_or(args.network, network_of_instances(machine_of(name))),
    )
    noted_cluster(name, cluster)
    _refuse_other_memory(args, cluster.device)
    if share is not None:
        cluster = msgspec.structs.replace(
            cluster,
            memory_limit_bytes=share.of(cluster.device.usable_bytes),
            beside_share=1.0 - share,
        )
    if args.host_memory is None:
        return cluster
    given = msgspec.structs.replace(cluster, host_ram_bytes=args.host_memory)
    return check_cluster(given)


def _refuse_other_memory(args: argparse.Namespace, device: Device) -> None:
    """Refuse what is about a second memory, where a GPU's is the host's own."""
    if not has_one_memory(device.name):
        return
    off = {"offload": defaults.OFFLOAD, "reference": None, "host_memory": None}
    for name, usual_value in off.items():
        given = getattr(args, name, None)
        if given in {None, usual_value} or (name == "reference" and given != "offloaded"):
            continue
        flag = f"--{name.replace('_', '-')}"
        if name != "host_memory":
            flag += f" {given}"
        fix = f"{flag.partition(' ')[0]} {usual_value}" if usual_value else f"no {flag}"
        raise InputError(
            f"{flag} is about a memory that {device.name} does not have: GPU and host share one, "
            f"and what a host holds is taken from the GPU; use {fix}",
            nearest={name: usual_value},
        )


def card_bytes(args: argparse.Namespace) -> int | None:
    """Return what programs have of each card by ``--card-memory``; None: it was not given.

    Of a label they have the share that they have of the same card's usual label.
    """
    given: int | None = args.card_memory
    if not isinstance(given, Labelled):
        return given
    return labelled_bytes(split_counts(_or(args.gpus, defaults.GPUS)).gpu, given)


def job_from(
    args: argparse.Namespace,
    devices: Sequence[Device] | None = None,
    model: ModelSpec | None = None,
) -> Job:
    """Resolve the job flags, with the defaults' table for what is not given.

    ``devices``: what may run it, where ``--gpus`` does not say. ``model``: what is trained, where
    its name was resolved already. Raises UnsupportedError: no device has what the recipe needs.
    """
    if args.task == INFERENCE:
        raise InputError(
            f"--task {INFERENCE} trains nothing; brimful estimate and brimful simulate take it"
        )
    refuse_elsewhere(args)
    model = model_from(args) if model is None else model
    seq_len = _or(args.seq_len, defaults.seq_len(model))
    num_devices = count_devices(_or(args.gpus, defaults.GPUS))
    global_batch = _or(args.global_batch, batch_from(args, max(1, num_devices)))
    task = _task_from(args, model)
    rows = 2 if task == PREFERENCE else 1
    num_steps = num_steps_from(args, model, task, global_batch, seq_len * rows)
    where = [cluster_from(args).device] if devices is None else devices
    precision = usual.precision_from(args, where)
    optimizer: Optimizer = _or(args.optimizer, defaults.OPTIMIZER)
    method, base = _packed(args, args.method or _method_told(args))
    job = check_job(
        Job(
            model=for_task(model, task),
            weights=args.weights,
            task=task,
            method=method,
            adapter=_adapter_from(args, method, base, precision, model),
            precision=precision,
            loss_scale=_loss_scale_from(args, precision),
            optimizer=optimizer,
            beta1=_or(args.beta1, defaults.beta1(optimizer)),
            beta2=_or(args.beta2, defaults.BETAS[1]),
            epsilon=_or(args.epsilon, defaults.epsilon(precision)),
            seq_len=seq_len,
            packing=_or(args.packing, PACKINGS[task][0]),
            global_batch=global_batch,
            num_steps=num_steps,
            learning_rate=_or(args.learning_rate, defaults.LEARNING_RATE),
            schedule=_or(args.schedule, defaults.SCHEDULE),
            warmup_steps=_or(args.warmup_steps, defaults.warmup_steps(num_steps)),
            weight_decay=_or(args.weight_decay, defaults.WEIGHT_DECAY),
            clip=_or(args.clip, defaults.CLIP),
            seed=_or(args.seed, defaults.SEED),
            preference=_preference_from(args, task),
            keep_fp32=_names(args.keep_fp32),
            router_aux_loss=_or(args.router_aux_loss, 0.0),
            router_z_loss=_or(args.router_z_loss, 0.0),
            allow=_allowed(args.allow),
            quantization=_quantization_from(args, method),
            dropout=_or(args.dropout, defaults.DROPOUT),
        )
    )
    if job.adapter is not None:
        check_targets(job.model, job.adapter.targets)
    return job if len(where) != 1 else check_precision(job, usual.place_of(where[0]))


def _task_from(args: argparse.Namespace, model: ModelSpec) -> Task:
    """Return the task, and name the other one that an encoder has."""
    usual_task = default_task(model)
    if args.task is None and is_encoder(model.model_type) and has_masked_head(model.model_type):
        note_once(
            f"--task {usual_task} is taken; --task masked-lm trains on hidden tokens, whose logits "
            f"of {model.vocab_size:,} words come on top of the same blocks"
        )
    task: Task = _or(args.task, usual_task)
    return task


def model_from(args: argparse.Namespace) -> ModelSpec:
    """Resolve the model, with the rows that were added to it."""
    model = load_model(args.model)
    if why := taken_words(args.model, model.name):
        note_once(why)
    if args.vocab_size is not None:
        model = with_vocab_size(model, args.vocab_size)
    if args.max_positions is not None:
        if args.max_positions < model.max_seq_len:
            note_once(
                f"--max-positions {args.max_positions} changes nothing: {model.name} has "
                f"{model.max_seq_len:,} positions"
            )
        model = with_positions(model, args.max_positions)
    return model if args.num_labels is None else with_num_labels(model, args.num_labels)


def _targets_from(args: argparse.Namespace, model: ModelSpec) -> tuple[str, ...]:
    """Return beside which layers adapters are; all of them, one by one, are all of them."""
    named = _names(args.lora_targets) or defaults.LORA_TARGETS
    if not are_all_linear(model, named):
        return named
    note_once(f"--lora-targets {ALL_LINEAR} is taken for {','.join(named)}")
    return (ALL_LINEAR,)


def _adapter_from(
    args: argparse.Namespace,
    method: Method,
    base: Base | None,
    precision: Precision,
    model: ModelSpec,
) -> Adapter | None:
    if method in WHOLE:
        _refuse_without(args, ADAPTER, f"--method {method}", "lora, dora or qlora")
        return None
    rank = _or(args.lora_rank, defaults.LORA_RANK)
    return Adapter(
        rank=rank,
        alpha=_or(args.lora_alpha, defaults.LORA_ALPHA_PER_RANK * rank),
        targets=_targets_from(args, model),
        trained_modules=_names(args.trained_modules),
        dtype=_or(args.adapter_dtype, "same"),
        base=base or defaults.base(method, precision),
        upcast=_or(args.upcast, "none"),
        input_requires_grad=bool(args.input_requires_grad),
    )


_BASES: dict[str, Base] = {
    "int4": defaults.QLORA_BASE, "nf4": defaults.QLORA_BASE,
    "int8": "llm-int8", "llm-int8": "llm-int8",
}  # fmt: skip
"""Formats of uploads, and the base of adapters that is about as large."""
_UNTRAINED = ("fp4", "fp8")
"""Of their words: what no adapters are put beside."""


def _method_told(args: argparse.Namespace) -> Method:
    """Return the method that the other flags tell where ``--method`` is not given."""
    told: dict[Method, tuple[str, ...]] = {"lora": ADAPTER, QAT: QUANTIZATION}
    for method, names in told.items():
        given = next((name for name in names if getattr(args, name) is not None), None)
        if given is None:
            continue
        meant: Method = "qlora" if args.base in QUANTIZED else method
        note_once(f"--method {meant} is taken, as --{given.replace('_', '-')} is given")
        return meant
    return defaults.METHOD


def _packed(args: argparse.Namespace, method: Method) -> tuple[Method, Base | None]:
    """Return the method and the base that a base or an upload in few bits makes of what was asked.

    LoRA beside such a base is QLoRA. In full what trains are the weights that it was made of.
    """
    if method == "lora" and args.base in QUANTIZED:
        note_once(f"--method qlora is taken for lora, as --base {args.base} is in few bits")
        return "qlora", args.base
    named, words = format_named(args.model)
    if named not in _BASES or any(each in words for each in _UNTRAINED) or args.base is not None:
        return method, args.base
    base = _BASES[named]
    if method in WHOLE:
        note_once(f"{words!r} in the model's name is for running: full weights train, not these")
    if method in {"lora", "qlora"}:
        if method == "lora" or base != defaults.QLORA_BASE:
            note_once(f"--method qlora --base {base} is taken for {words!r} in the model's name")
        return "qlora", base
    return method, base if method == "dora" and base == defaults.QLORA_BASE else None


def _quantization_from(args: argparse.Namespace, method: Method) -> Quantization | None:
    if method != QAT:
        _refuse_without(args, QUANTIZATION, f"--method {method}", f"--method {QAT}")
        return None
    scheme: Scheme = _or(args.qat_scheme, defaults.QAT_SCHEME)
    return Quantization(scheme=scheme, group_size=_or(args.qat_group_size, default_group(scheme)))


def _loss_scale_from(args: argparse.Namespace, precision: Precision) -> LossScale | None:
    if precision not in SCALED:
        scaled = " or ".join(sorted(SCALED))
        _refuse_without(args, LOSS_SCALE, f"--precision {precision}", scaled)
        return None
    given = {name: getattr(args, name) for name in LOSS_SCALE}
    changes = {name: value for name, value in given.items() if value is not None}
    return msgspec.structs.replace(defaults.LOSS_SCALE, **changes)


def _preference_from(args: argparse.Namespace, task: Task) -> Preference | None:
    if task != PREFERENCE:
        _refuse_without(args, OF_PREFERENCE, f"--task {task}", f"--task {PREFERENCE}")
        return None
    default = defaults.PREFERENCE
    return Preference(
        beta=_or(args.dpo_beta, default.beta),
        label_smoothing=_or(args.label_smoothing, default.label_smoothing),
    )


def _refuse_without(
    args: argparse.Namespace, names: tuple[str, ...], setting: str, fix: str
) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise InputError(
                f"--{name.replace('_', '-')} {getattr(args, name)} has no meaning with {setting}; "
                f"use {fix}, or leave it out"
            )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _allowed(text: str | None) -> tuple[Allowed, ...]:
    read = choice("allow", get_args(Allowed))
    return tuple(cast("Allowed", read(name)) for name in _names(text))


def refuse_other_strategy(args: argparse.Namespace, strategy: Strategy) -> None:
    """Refuse strategy flags that say something else than a run began with."""
    for name in STRATEGY:
        given, began = getattr(args, name), getattr(strategy, name)
        if given is not None and given != began:
            raise InputError(
                f"--{name.replace('_', '-')} {given} is not what the run began with, {began}; "
                f"leave it out to go on, or choose another --out"
            )


_OF_STATES = (1, 2)
"""Stages of ZeRO that nothing can be sharded by where a model is cut over all devices."""


def _degrees_from(args: argparse.Namespace, num_devices: int, zero: Zero) -> dict[str, Any]:
    """Resolve how devices are spread over replicas and shards; all in one group by default."""
    if zero == 0:
        replicate, shard = _or(args.dp_replicate, num_devices), _or(args.dp_shard, 1)
    elif args.dp_replicate is None and args.dp_shard is not None:
        shard = args.dp_shard
        replicate = max(1, num_devices // shard)
    else:
        replicate = _or(args.dp_replicate, 1)
        shard = _or(args.dp_shard, max(1, num_devices // replicate))
    return {"zero": zero, "dp_replicate": replicate, "dp_shard": shard}


def _pipeline_from(args: argparse.Namespace) -> dict[str, Any]:
    schedule: PipelineSchedule = _or(args.pp_schedule, defaults.PP_SCHEDULE)
    several = 1 if schedule in ONE_STAGE else 2
    return {
        "pp_schedule": schedule,
        "stages_per_device": _or(args.stages_per_device, several),
        "stage_blocks": _or(args.stage_blocks, ()),
    }


def _usual_micro_batch(args: argparse.Namespace, job: Job, degrees: dict[str, Any]) -> int:
    """Return the micro-batch of a strategy that names none.

    It is all of a device's rows where parts would change a loss, or would be updated by themselves.
    """
    if args.optimizer_in_backward:
        return max(1, int(job.global_batch // (degrees["dp_replicate"] * degrees["dp_shard"])))
    is_free = exactness(job, "micro_batch", defaults.MICRO_BATCH).how != "changes"
    return defaults.MICRO_BATCH if is_free else job.global_batch


def strategy_from(args: argparse.Namespace, job: Job, cluster: Cluster) -> Strategy:
    """Resolve the strategy flags, with the defaults' table for what is not given."""
    attention = usual.attention_from(args, job, cluster.device)
    each = max(1, cluster.num_devices // (_or(args.tp, 1) * _or(args.pp, 1)))
    if each == 1 < cluster.num_devices and args.zero in _OF_STATES and args.dp_shard is None:
        note_once(
            f"--zero {args.zero} shards over copies of the model, of which there is one: as 0"
        )
        args.zero = 0

    fused = usual.fused_from(args, job, cluster)

    def make(zero: Zero) -> Strategy:
        degrees = _degrees_from(args, each, zero)
        strategy = _strategy(args, job, attention, degrees, fused)
        return check_strategy(job, placed(strategy, cluster.num_devices))

    return usual.strategy_that_runs(args, each, make)


def _offload(args: argparse.Namespace, job: Job, engine: str) -> str:
    """Return what is offloaded; of all blocks in DeepSpeed's words, which has no others."""
    typed: str = _or(args.offload, defaults.OFFLOAD)
    every = rf":{job.model.num_layers}(?!\d)"
    return re.sub(every, "", typed) if engine == "deepspeed" else typed


def _strategy(
    args: argparse.Namespace,
    job: Job,
    attention: Attention,
    degrees: dict[str, Any],
    fused: FusedKernels | None,
) -> Strategy:
    engine, pp = _or(args.engine, defaults.ENGINE), _or(args.pp, 1)
    return Strategy(
        micro_batch=_or(args.micro_batch, _usual_micro_batch(args, job, degrees)),
        activation_checkpointing=_or(
            args.activation_checkpointing, defaults.ACTIVATION_CHECKPOINTING
        ),
        loss_chunks=_or(args.loss_chunks, defaults.LOSS_CHUNKS),
        attention=attention,
        accumulate=_or(args.accumulate, default_accumulate(engine, degrees["zero"], pp)),
        tp=_or(args.tp, 1),
        ep=_or(args.ep, 1),
        pp=pp,
        **_pipeline_from(args),
        reference=_or(args.reference, default_reference(job)),
        engine=engine,
        engine_settings=_or(args.engine_settings, defaults.ENGINE_SETTINGS),
        offload=_offload(args, job, engine),
        optimizer_in_backward=bool(args.optimizer_in_backward),
        compile=_or(args.compile, defaults.COMPILE),
        fsdp=_or(args.fsdp, defaults.FSDP),
        fused_kernels=fused or defaults.FUSED_KERNELS,
        allocator=_or(args.allocator, defaults.ALLOCATOR),
        **degrees,
    )
