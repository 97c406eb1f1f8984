"""A published run as a Job, a Cluster and a Strategy, or why it cannot be one."""

import re
from functools import cache
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from brimful.cost.formula import missing_formula
from brimful.errors import BrimfulError
from brimful.hardware.cluster import Cluster
from brimful.hardware.devices import gpus
from brimful.hardware.gpus import load_cluster
from brimful.models.architectures import record_of
from brimful.models.config import experts_of, has_layout, load_model, read_config
from brimful.models.resized import is_rotary, with_positions
from brimful.models.spec import ModelSpec
from brimful.published.four_bits import GPTQ, is_packed
from brimful.published.rows import PublishedAdapter, PublishedRun, published_models
from brimful.published.updates import EARLY
from brimful.techniques.runnable import check_strategy
from brimful.units import GIB
from brimful.values.job import (
    PACKINGS,
    QUANTIZED,
    SCALED,
    Adapter,
    Job,
    LossScale,
    Precision,
    check_job,
    plain_job,
)
from brimful.values.strategy import Strategy

NETWORKS = {"a100-40gb": "ib-hdr-200", "a100-80gb": "ib-hdr-200"}
DEFAULT_NETWORK = "ib-ndr-400"
"""Between nodes, by GPU: assumed where a source is silent. Matters to predicted times only."""
_LOSS_SCALE = LossScale(
    initial_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
)
"""``torch.amp.GradScaler``'s defaults; they decide no byte."""
_NO_PROFILE = re.compile(r"no profile [^)]*")


class Expressed(NamedTuple):
    """A published run in our terms."""

    job: Job
    cluster: Cluster
    strategy: Strategy


OTHER_TENSOR_PARALLEL = "tensor parallel of another program"
"""Ours computes with plain tensors, and cuts tokens and vocabulary too. torchtitan's of 2024 kept
twice to three times of what ours does (decision 24)."""


_MIXED: dict[Precision, Precision] = {"bf16": "bf16-mixed", "fp16": "fp16-mixed"}


FLOAT8 = "float8"
"""torchao's products in 8 bits keep their inputs in 16 bits for backward, as ours do: the same
peak, another speed. Source: ``matmul_with_hp_or_float8_args`` of
``torchao/float8/float8_linear.py``."""
PACKED_EXPERTS = "experts in 4 bits, sharded"
"""Ours leaves experts in 16 bits, and gathers them so (``four_bits.py``)."""
SHARDED = (2, 3)
AS_TRANSFORMERS = frozenset({"hf", "hf-fsdp1", "litgpt", "torchtune"})
"""Implementations whose blocks are those of transformers whatever the model, or whose rules say in
what they are not; torchtune's keep the same of a block, with the same operations."""


class Unexpressed(NamedTuple):
    """Why a published run has no prediction, in few words that runs share."""

    reason: str


def express(run: PublishedRun) -> Expressed | Unexpressed:
    """Put a published run into our terms.

    Left out, since no formula covers it and no peak lies there: the dropout of adapters, and the
    gradient of the embedding's output that re-entrant checkpointing needs.
    """
    told = in_our_terms(run)
    if isinstance(told, Unexpressed):
        return told
    missing = missing_formula(told.job, told.strategy, told.cluster.device)
    return Unexpressed(_short(run, missing)) if missing else told


def in_our_terms(run: PublishedRun) -> Expressed | Unexpressed:
    """Put a published run into our terms, whether a formula covers it or not; see ``express``."""
    try:
        reason = _obstacle(run)
        if reason:
            return Unexpressed(reason)
        job, cluster, strategy = _job(run), _cluster(run), _strategy(run)
        check_job(job)
        check_strategy(job, strategy)
    except BrimfulError as error:
        return Unexpressed(str(error).partition(";")[0])
    return Expressed(job, cluster, strategy)


def _obstacle(run: PublishedRun) -> str:
    beyond = [what for what in run.beyond if not _is_expressed(run, what)]
    if beyond:
        return ", ".join(beyond)
    if run.tp > 1:
        return OTHER_TENSOR_PARALLEL
    if EARLY in run.unlike and (run.accumulation > 1 or run.num_devices > 1):
        return f"{EARLY}, of several micro-batches or devices"
    if run.gpu not in gpus():
        return f"no CUDA kernels on {run.gpu}"
    model_type = _model_type(run.model)
    if not record_of(model_type).traced_as and run.implementation not in AS_TRANSFORMERS:
        return f"model_type={model_type}"  # somebody else's code
    return PACKED_EXPERTS if run.zero in SHARDED and _has_packed_experts(run) else ""


def _is_expressed(run: PublishedRun, what: str) -> bool:
    """Whether what is beyond our program is predicted all the same."""
    return what == GPTQ or (what == FLOAT8 and run.implementation == "torchtitan")


def _has_packed_experts(run: PublishedRun) -> bool:
    is_quantized = GPTQ in run.beyond or (run.adapter is not None and run.adapter.base in QUANTIZED)
    model = model_of(run.model)
    if not is_quantized or not has_layout(model):  # known as soon as it is built, to be traced
        return False
    return experts_of(model).num_experts > 0


def _short(run: PublishedRun, missing: str) -> str:
    """Say which formula is missing so that runs with the same want are counted together."""
    profile = _NO_PROFILE.search(missing)
    if profile:
        return profile[0]
    if "adapters" not in missing or run.adapter is None:
        return missing.partition(" has no formula")[0]
    adapter = run.adapter
    held = "" if adapter.base == "same" else f" on {adapter.base}"
    return f"{run.method}{held}, {run.precision}, adapters of {len(adapter.targets)} names"


def _model_type(name: str) -> str:
    known = published_models().get(name)
    return known.model_type if known else model_of(name).model_type


@cache
def model_of(name: str) -> ModelSpec:
    """Return the model that a published run names, of the registry or carried with the runs.

    Raises BrimfulError: it is in neither.
    """
    known = published_models().get(name)
    if known is None or known.config is None:
        return load_model(name)
    return read_config(name, {"model_type": known.model_type, **known.config})


def _job(run: PublishedRun) -> Job:
    sequences = run.micro_batch * run.accumulation * run.dp_replicate * run.dp_shard
    is_gptq = GPTQ in run.beyond
    adapter = _adapter(run.adapter) if run.adapter else None
    is_widened = is_gptq and adapter is not None and adapter.dtype == "fp32"
    precision = _MIXED.get(run.precision, run.precision) if is_widened else run.precision
    return plain_job(
        _long_enough(run),
        task=run.task,
        method="qlora" if is_gptq else run.method,
        adapter=adapter and replace(adapter, base="nf4-double") if is_packed(run) else adapter,
        precision=precision,
        loss_scale=_LOSS_SCALE if precision in SCALED else None,
        optimizer=run.optimizer,
        seq_len=run.seq_len,
        packing=PACKINGS[run.task][0],
        global_batch=sequences,
    )


def _long_enough(run: PublishedRun) -> ModelSpec:
    """Return a run's model, for longer texts than it has learnt where a program fed it such.

    Programs do not refuse them where positions are angles, which take no parameters.
    """
    model = model_of(run.model)
    if run.seq_len <= model.max_seq_len or not is_rotary(model):
        return model
    return with_positions(model, run.seq_len)


def _adapter(adapter: PublishedAdapter) -> Adapter:
    return Adapter(
        rank=adapter.rank,
        alpha=float(adapter.rank),
        targets=adapter.targets,
        trained_modules=(),
        dtype=adapter.dtype,
        base=adapter.base,
        upcast=adapter.upcast,
        input_requires_grad=False,
    )


def _cluster(run: PublishedRun) -> Cluster:
    per_node = run.devices_per_node or run.num_devices
    num_nodes = -(-run.num_devices // per_node)
    assumed = NETWORKS.get(run.gpu, DEFAULT_NETWORK) if num_nodes > 1 else ""
    cluster = load_cluster(
        f"{num_nodes}x{per_node}x{run.gpu}",
        memory_limit_bytes=None,
        network_name=run.network or assumed,
    )
    if run.usable_gib is None:
        return cluster
    usable_bytes = round(run.usable_gib * GIB)
    device = msgspec.structs.replace(cluster.device, usable_bytes=usable_bytes)
    return msgspec.structs.replace(cluster, device=device)


def _strategy(run: PublishedRun) -> Strategy:
    return Strategy(
        micro_batch=run.micro_batch,
        activation_checkpointing=run.checkpointing,
        loss_chunks=run.loss_chunks,
        attention=run.attention,
        fused_kernels=run.fused_kernels,
        offload=run.offload,
        zero=run.zero,
        dp_replicate=run.dp_replicate,
        dp_shard=run.dp_shard,
        tp=run.tp,
        pp=run.pp,
    )
