"""Whether a job can be run by a strategy: each refusal says what to change. No torch."""

from msgspec.structs import replace

from brimful.allocator.config import parse_settings
from brimful.errors import InputError, UnknownMemoryError, UnsupportedError
from brimful.techniques.beside import (
    check_alone,
    check_compiled,
    check_fused,
    check_pairs,
    check_router_losses,
)
from brimful.techniques.deepspeed import (
    DEEPSPEED_PRECISIONS,
    deepspeed_precision,
    refused_by_deepspeed,
)
from brimful.techniques.deepspeed_settings import parse_engine_settings
from brimful.techniques.dropout import check_dropout
from brimful.techniques.exact import Field, exactness
from brimful.techniques.offload import (
    OPTIMIZER,
    PARAMETERS,
    Devices,
    away_of,
    check_early,
    check_offload,
)
from brimful.techniques.one_unit import check_built_unit
from brimful.techniques.optimizers import DEFAULT as DEFAULT_OPTIMIZER
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.techniques.parallel.experts import Spread, check_experts_split
from brimful.techniques.parallel.flat import check_flat
from brimful.techniques.parallel.stages import SPLIT_BACKWARD, check_pipeline
from brimful.techniques.parallel.tensor import check_tensor
from brimful.values.job import FP8, NARROW, OVER_TOKENS, PREFERENCE, QUANTIZED, Base, Job
from brimful.values.strategy import (
    DEGREES,
    Strategy,
    data_parallel,
    default_reference,
    gathers,
    gathers_alone,
    is_flat,
    is_selective,
    num_checkpointed,
    num_micro_batches,
    split_of,
    what_is_away,
    world_size,
)

_EIB = 2**60
MAX_BYTES = 4 * _EIB
"""Byte counts beyond this overflow; no machine has them."""
_BYTES_PER_VALUE = 64
"""More than any block keeps per value of its input, so that the bound below is one."""
_MAX_CHOICES = 12
FP8_MULTIPLE = 16
"""Of rows and columns of fp8 products; tested equal to ``build.precision.fp8``."""
_FIELDS: tuple[Field, ...] = (
    "micro_batch", "activation_checkpointing", "loss_chunks", "attention", "reference",
    "fused_kernels",
)  # fmt: skip
UNSHARDED: frozenset[Base] = frozenset({"llm-int8"})
"""Quantised bases whose weights FSDP2 does not see."""
NUM_DEVICES = "num_devices"
"""What of a cluster a refusal may name: as many devices as a strategy is for."""


def placed(strategy: Strategy, num_devices: int) -> Strategy:
    """Return the strategy as it is, or say that it is for another number of devices."""
    if world_size(strategy) != num_devices:
        if num_devices % (strategy.tp * strategy.pp):
            each, most = strategy.tp * strategy.pp, min(num_devices, strategy.tp)
            is_alone = strategy.pp == 1
            fewer = {"tp": _largest_divisor(num_devices, most=most)} if is_alone else {}
            raise InputError(
                f"tp={strategy.tp} x pp={strategy.pp} does not divide {num_devices} devices; use "
                f"degrees whose product is one of {_divisors(num_devices, near=each)}",
                nearest=_as_many(strategy, num_devices) or fewer,
            )
        product = " x ".join(f"{name}={getattr(strategy, name)}" for name in DEGREES)
        raise InputError(
            f"{product} is {world_size(strategy)} and the cluster has {num_devices} devices; make "
            f"them equal",
            nearest=_as_many(strategy, num_devices),
        )
    return strategy


def _as_many(strategy: Strategy, num_devices: int) -> dict[str, int]:
    """Name the devices of one model, where there are not even so many; replicas follow these.

    Who has several has no more of them: a model is cut over those, if it is not by stages too.
    """
    each, is_machine = strategy.tp * strategy.pp, num_devices > 1 and strategy.pp == 1
    return {NUM_DEVICES: each} if each > num_devices and not is_machine else {}


def check_strategy(job: Job, strategy: Strategy) -> Strategy:
    """Return the strategy as it is, or say why it cannot run this job."""
    check_spread(job, strategy)
    _check_reference(job, strategy)
    _check_engine(job, strategy)
    share = job.global_batch // data_parallel(strategy)
    if strategy.micro_batch < 1 or share % strategy.micro_batch:
        whose = "" if share == job.global_batch else f" / {data_parallel(strategy)} devices"
        raise InputError(
            f"micro_batch={strategy.micro_batch} does not divide global_batch={job.global_batch}"
            f"{whose}; use {_divisors(share, near=strategy.micro_batch)}",
            nearest={"micro_batch": _largest_divisor(share, most=strategy.micro_batch)},
        )
    tokens = strategy.micro_batch * job.rows_per_sample * job.seq_len
    if not 1 <= strategy.loss_chunks <= tokens:
        raise InputError(
            f"loss_chunks={strategy.loss_chunks} cannot cut the {tokens} tokens of a micro-batch; "
            f"use 1 to {tokens}"
        )
    if strategy.loss_chunks > 1 and job.task not in OVER_TOKENS:
        raise UnsupportedError(
            f"loss_chunks={strategy.loss_chunks} cuts a loss over tokens, and task={job.task} has "
            f"one for each sample; use 1",
            nearest={"loss_chunks": 1},
        )
    _check_rows(job, tokens)
    _check_pipeline(job, strategy)
    num_checkpointed(strategy, num_layers=job.model.num_layers)
    check_built_unit(job, strategy)
    parse_settings(strategy.allocator)
    _check_exact(job, strategy)
    _check_size(job, strategy)
    return strategy


def check_spread(job: Job, strategy: Strategy) -> None:
    """Refuse degrees that do not go together, or with the job.

    Raises UnsupportedError: this version does not run it.
    """
    degrees = {name: getattr(strategy, name) for name in (*DEGREES, "ep")}
    for name, degree in degrees.items():
        if degree < 1:
            raise InputError(f"{name}={degree} is too few devices; give 1 or more")
    _check_zero(job, strategy)
    check_flat(job, strategy)
    check_alone(strategy)
    check_compiled(job, strategy)
    check_fused(job, strategy)
    check_pairs(job, strategy)
    _check_tensor(job, strategy)
    check_experts_split(job, _expert_spread(strategy))
    check_router_losses(job, strategy)
    check_dropout(job, strategy)
    parts = data_parallel(strategy)
    if job.global_batch % parts:
        raise InputError(
            f"global_batch={job.global_batch} cannot be split over {parts} data-parallel devices; "
            f"use a multiple of {parts}",
            nearest={"global_batch": -(-job.global_batch // parts) * parts},
        )


def _expert_spread(strategy: Strategy) -> Spread:
    return Spread(
        ep=strategy.ep,
        tp=strategy.tp,
        dp_shard=strategy.dp_shard,
        dp_replicate=strategy.dp_replicate,
        zero=strategy.zero,
    )


def _check_pipeline(job: Job, strategy: Strategy) -> None:
    """Refuse a pipeline that does not run, or not beside what else is asked for."""
    micro_batches = num_micro_batches(job, strategy)
    check_pipeline(job, split_of(strategy), num_micro_batches=micro_batches)
    if strategy.pp == 1:
        return
    if data_parallel(strategy) > 1 and strategy.accumulate != "hold":
        raise UnsupportedError(
            f"pp={strategy.pp} with accumulate={strategy.accumulate} is not run by torch's "
            f"pipelines, which reduce gradients once a step; use accumulate=hold",
            nearest={"accumulate": "hold"},
        )
    if data_parallel(strategy) > 1 and strategy.pp_schedule in SPLIT_BACKWARD:
        raise UnsupportedError(
            f"pp_schedule={strategy.pp_schedule} over {data_parallel(strategy)} data-parallel "
            f"devices is not run: torch computes gradients of weights apart, where neither DDP "
            f"nor FSDP2 sees them; use pp_schedule=1f1b or interleaved, or as many devices as one "
            f"pipeline has",
            nearest={"pp_schedule": "1f1b", "stages_per_device": None},
        )
    if job.precision == FP8 and strategy.pp_schedule in SPLIT_BACKWARD:
        raise UnsupportedError(
            f"pp_schedule={strategy.pp_schedule} with precision={FP8} is not run by this version, "
            f"whose products compute both gradients at once; use pp_schedule=1f1b or interleaved",
            nearest={"pp_schedule": "1f1b", "stages_per_device": None},
        )
    if is_selective(strategy) and strategy.pp_schedule in SPLIT_BACKWARD:
        raise UnsupportedError(
            f"pp_schedule={strategy.pp_schedule} with activation_checkpointing="
            f"{strategy.activation_checkpointing} is not run: torch goes backward through a block "
            f"twice, which selective checkpoints forbid; use full, or pp_schedule=1f1b",
            nearest={"pp_schedule": "1f1b", "stages_per_device": None},
        )


def _check_tensor(job: Job, strategy: Strategy) -> None:
    """Refuse tensor parallelism of what cannot be cut, or beside what takes no pieces."""
    check_tensor(job, strategy.tp, ep=strategy.ep)
    beside: dict[str, tuple[bool, dict[str, object]]] = {
        f"engine={strategy.engine}": (strategy.engine != "torch", {"engine": "torch"}),
        f"optimizer={job.optimizer}": (
            OPTIMIZERS[job.optimizer].shards not in {"all", "local"},
            {"optimizer": DEFAULT_OPTIMIZER},
        ),
        f"keep_fp32={','.join(job.keep_fp32)}": (bool(job.keep_fp32), {"keep_fp32": None}),
        f"precision={FP8}": (job.precision == FP8, {"precision": "bf16-mixed"}),
    }  # fmt: skip
    for what, (takes_none, nearest) in beside.items():
        if strategy.tp > 1 and takes_none:
            raise UnsupportedError(
                f"tp={strategy.tp} with {what} is not run by this version, which has no pieces of "
                f"matrices there; use engine=torch and optimizer={DEFAULT_OPTIMIZER}, another "
                f"precision than fp8, and no keep_fp32",
                nearest=nearest,
            )


def _check_zero(job: Job, strategy: Strategy) -> None:
    zero, shards = strategy.zero, strategy.dp_shard
    if zero == 0 and shards > 1:
        raise InputError(
            f"zero=0 shards nothing and dp_shard={shards} asks for shards; use "
            f"dp_replicate={shards}, or zero 1 to 3"
        )
    is_torch = strategy.engine == "torch"
    if zero and shards == 1 and is_torch and not gathers_alone(strategy):
        raise InputError(
            f"zero={zero} shards over dp_shard=1; give 2 devices or more, or zero=0",
            nearest={"zero": 0},
        )
    if zero == 1 and not OPTIMIZERS[job.optimizer].zero1:
        raise UnsupportedError(
            f"zero=1 with optimizer={job.optimizer} is not run by this version, whose state is cut "
            f"by torch's ZeRO-1 in another way; use zero=0, or optimizer={DEFAULT_OPTIMIZER}",
            nearest={"zero": 0},
        )
    held, _, how = job.precision.partition("-")
    if zero == 1 and job.keep_fp32 and (job.precision in NARROW or how == "master") and is_torch:
        raise UnsupportedError(
            f"zero=1 with keep_fp32={','.join(job.keep_fp32)} and precision={job.precision} is not "
            f"run by this version, as torch's ZeRO-1 takes parameters of one type; use zero 0, 2 "
            f"or 3, or {held}-mixed"
        )
    if gathers(strategy) and job.adapter is not None and job.adapter.base in UNSHARDED:
        raise UnsupportedError(
            f"zero={zero} with base={job.adapter.base} is not run by this version, whose weights "
            f"lie where FSDP2 does not see them; use base=int8 or nf4, or zero 0 or 1",
            nearest={"zero": 0, "dp_shard": None},
        )
    if gathers(strategy) and job.task == "module":
        raise UnsupportedError(
            f"zero={zero} of a module of your own is not run by this version; use zero 0 or 1",
            nearest={"zero": 0, "dp_shard": None},
        )
    if gathers(strategy) and OPTIMIZERS[job.optimizer].shards == "none" and is_torch:
        raise UnsupportedError(
            f"zero={zero} with optimizer={job.optimizer} is not run by this version, whose kernels "
            f"for it take no shards; use optimizer={DEFAULT_OPTIMIZER}, or zero 0 or 1",
            nearest={"zero": 0, "dp_shard": None},
        )


def _check_reference(job: Job, strategy: Strategy) -> None:
    reference = strategy.reference
    if (reference != "none") != (job.task == PREFERENCE):
        fix = "leave it out" if reference != "none" else f"use {default_reference(job)}"
        raise InputError(
            f"reference={reference} does not go with task={job.task}: a reference model is what "
            f"task={PREFERENCE} compares with; {fix}"
        )
    if reference == "adapters-off" and job.adapter is None:
        raise InputError(
            f"reference=adapters-off needs adapters to switch off and method={job.method} has "
            f"none; use resident, offloaded or precomputed"
        )
    if reference == "offloaded" and job.adapter is not None and job.adapter.base in QUANTIZED:
        raise UnsupportedError(
            f"reference=offloaded of a base in {job.adapter.base} is not run by this version; use "
            f"adapters-off, which needs no second model",
            nearest={"reference": "adapters-off"},
        )


def _check_engine(job: Job, strategy: Strategy) -> None:
    """Refuse what an engine cannot do."""
    parse_engine_settings(strategy.engine_settings)
    if strategy.engine == "torch":
        if strategy.engine_settings:
            raise UnsupportedError(
                f"engine_settings={strategy.engine_settings} are of engine=deepspeed alone; leave "
                f"them out, or use it",
                nearest={"engine_settings": None},
            )
        early, num_devices = strategy.optimizer_in_backward, world_size(strategy)
        _check_sharded_on_host(job, strategy)
        devices = Devices(num_devices, strategy.pp, strategy.zero, strategy.tp)
        check_offload(job, strategy.offload, devices, updates_early=early)
        if early:
            check_early(job, what_is_away(job, strategy), strategy.offload, num_devices=num_devices)
        return
    away_of(strategy.offload, num_layers=job.model.num_layers)
    refused = next(refused_by_deepspeed(job, strategy), None)
    if refused is not None:
        what, fix = refused
        is_run = job.precision in DEEPSPEED_PRECISIONS
        raise UnsupportedError(
            f"{what} is not run by engine=deepspeed; {fix}, or engine=torch",
            nearest={} if is_run else {"precision": deepspeed_precision(job.precision)},
        )


def _check_sharded_on_host(job: Job, strategy: Strategy) -> None:
    """Refuse all parameters of several devices on the host, and name who shards them there."""
    num_layers, num_devices = job.model.num_layers, world_size(strategy)
    away = what_is_away(job, strategy)
    if away.frozen:  # of which ours runs what shards no parameters
        return
    if num_devices == 1 or away.parameters < num_layers or away.activations:
        return
    other = deepspeed_precision(job.precision)
    there = replace(strategy, engine="deepspeed", offload=PARAMETERS, zero=3)
    if any(refused_by_deepspeed(replace(job, precision=other), there)):
        return
    raise UnsupportedError(
        f"offload={strategy.offload} with {num_devices} devices is not run by engine=torch in this "
        f"version; use engine=deepspeed with zero=3, precision={other} and offload={PARAMETERS}, "
        f"or offload={OPTIMIZER}, or one device, or offload=none",
        nearest={"engine": "deepspeed", "zero": 3, "offload": PARAMETERS, "precision": other},
    )


def check_simulated(strategy: Strategy) -> None:
    """Refuse an engine that is simulated by its own program and not within ours.

    Raises UnsupportedError: it is DeepSpeed.
    """
    if strategy.engine != "torch":
        raise UnknownMemoryError(
            f"engine={strategy.engine} is not simulated within our own loop; brimful simulate "
            f"--for deepspeed runs DeepSpeed's own code, and engine=torch is simulated",
            nearest={"engine": "torch"},
        )


def check_examined(strategy: Strategy) -> None:
    """Refuse what the precision doctor does not look into."""
    if is_flat(strategy):
        raise UnsupportedError(
            "fsdp=1 is not examined by this version; use fsdp=2: it learns the same"
        )
    for field in ("pp", "ep"):
        if getattr(strategy, field) > 1:
            raise UnsupportedError(
                f"{field}={getattr(strategy, field)} is not examined by this version; use "
                f"{field}=1: it learns the same"
            )
    if strategy.compile != "none":
        raise UnsupportedError(
            f"compile={strategy.compile} is not examined by this version, as no module inside a "
            f"compiled block is seen; use compile=none"
        )
    if strategy.fused_kernels == "liger":
        raise UnsupportedError(
            f"fused_kernels={strategy.fused_kernels} is not examined by this version, as its loss "
            f"has no logits to look at; use fused_kernels=none: it learns the same"
        )
    if gathers_alone(strategy):
        raise UnsupportedError(
            f"zero={strategy.zero} on one device is not examined by this version; use zero=0: it "
            f"learns the same"
        )


def _largest_divisor(number: int, *, most: int) -> int:
    """Return the largest divisor of a number that is no larger than another; at least 1."""
    return max((n for n in range(1, min(number, most) + 1) if not number % n), default=1)


def _divisors(number: int, *, near: int) -> str:
    """List divisors, those nearest to what was asked for where there are many."""
    small = [n for n in range(1, min(number, 4096) + 1) if not number % n]
    chosen = sorted(sorted(small, key=lambda n: abs(n - near))[:_MAX_CHOICES])
    return ", ".join(map(str, chosen))


def _check_rows(job: Job, tokens: int) -> None:
    """Refuse rows that fp8 products cannot add over; those of samples are filled up."""
    if job.precision == FP8 and job.packing != "none" and tokens % FP8_MULTIPLE:
        raise InputError(
            f"micro_batch x seq_len is {tokens} tokens and precision={FP8} multiplies multiples of "
            f"{FP8_MULTIPLE}; use a seq_len that is one, or packing=none"
        )


def _check_exact(job: Job, strategy: Strategy) -> None:
    values: dict[Field, object] = {field: getattr(strategy, field) for field in _FIELDS}
    values["data_parallel"] = data_parallel(strategy)
    early = strategy.optimizer_in_backward
    values["optimizer_in_backward"] = num_micro_batches(job, strategy) if early else 0
    for field, value in values.items():
        found = exactness(job, field, value)
        if found.how == "changes":
            said = getattr(strategy, field, value)
            raise InputError(
                f"{field}={said} would change what this job learns: {found.reason}",
                nearest={"allow": found.allowed_by} if found.allowed_by else None,
            )


def _check_size(job: Job, strategy: Strategy) -> None:
    model, rows = job.model, strategy.micro_batch * job.rows_per_sample
    tokens = rows * job.seq_len
    width = model.hidden_size + model.intermediate_size + model.num_heads * model.head_dim
    per_block = tokens * width + rows * model.num_heads * job.seq_len**2
    parameters = width * model.hidden_size
    values = model.num_layers * (per_block + 4 * parameters) + tokens * model.vocab_size
    if values * _BYTES_PER_VALUE > MAX_BYTES:
        raise InputError(
            f"micro_batch={strategy.micro_batch} x seq_len={job.seq_len} of {model.name} could "
            f"take {values * _BYTES_PER_VALUE / _EIB:.3g} EiB and no more than "
            f"{MAX_BYTES / _EIB:.3g} EiB can be counted; lower one of them"
        )
