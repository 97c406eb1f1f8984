"""What rules are checked on: one model on one GPU, and the runs that checks ask about."""

from typing import Any, NamedTuple

import msgspec

from brimful.cost.estimate import estimate
from brimful.cost.states import States, states
from brimful.cost.update import CUDA, update_of
from brimful.errors import UnsupportedError
from brimful.hardware.cluster import AMPERE, Cluster
from brimful.hardware.datasheets import Datasheet, datasheets
from brimful.models.config import load_model, parameter_count
from brimful.search.offers import offers
from brimful.techniques.optimizers import DEFAULT
from brimful.values.job import Job, Precision
from brimful.values.plan import Estimate, Plan
from brimful.values.results import SAVED_ACTIVATIONS
from brimful.values.strategy import Attention, Strategy, world_size

DEVICES_PER_NODE = 8
MANY_SEQUENCES = 64


class Subject(NamedTuple):
    """A job on one device, and the plan for all of them.

    Attributes:
        job: What the user trains.
        cluster: One of the devices.
        strategy: The plainest: fused attention where the model takes it, nothing recomputed, whole
            logits.
        plan: What ``brimful plan`` says of the job on every device that was given; None where no
            formula covers it.
    """

    job: Job
    cluster: Cluster
    strategy: Strategy
    plan: Plan | None = None


def plain_strategy(micro_batch: int, attention: Attention = "sdpa") -> Strategy:
    """Return the strategy that checks start from."""
    return Strategy(
        micro_batch=micro_batch,
        activation_checkpointing="none",
        loss_chunks=1,
        attention=attention,
    )


def full(subject: Subject, precision: Precision) -> Job:
    """Return the job of training every parameter with the default optimizer under a recipe."""
    return msgspec.structs.replace(
        subject.job,
        method="full",
        adapter=None,
        optimizer=DEFAULT,
        precision=precision,
        loss_scale=None,
        keep_fp32=(),
    )


def mixed(subject: Subject) -> Job:
    """Return full training in the 16-bit mixed recipe that the GPU has units for."""
    device = subject.cluster.device
    old = device.kernels == "cuda" and device.capability < AMPERE
    return full(subject, "fp16-mixed" if old else "bf16-mixed")


def low_rank(subject: Subject, precision: Precision, method: str) -> Job:
    """Return the job of training adapters: those offered to a job that has none.

    ``method``: ``lora`` or ``qlora``.
    """
    made = {offer.allow: offer.job for offer in offers(full(subject, precision))}
    return made[f"--method {method}"]


def other_model(subject: Subject, name: str, *, seq_len: int) -> Job:
    """Return full training of a model of the registry in 16 bits, with this sequence length."""
    model = load_model(name)
    changed = msgspec.structs.replace(
        full(subject, "bf16-mixed"), model=model, seq_len=min(seq_len, model.max_seq_len)
    )
    return msgspec.structs.replace(changed, task="causal-lm", packing="wrapped", preference=None)


def run(subject: Subject, job: Job, **changes: Any) -> Estimate:
    """Predict a run on one device.

    ``changes``: fields of the strategy that differ from the plainest. Raises UnsupportedError: no
    formula covers it.
    """
    strategy = msgspec.structs.replace(subject.strategy, **changes)
    return estimate(job, subject.cluster, strategy)


def run_many(subject: Subject, job: Job, **changes: Any) -> Estimate:
    """Predict a run on several devices of one kind, eight to a node.

    ``job``: what; its batch grows to a micro-batch per device. Raises UnsupportedError: no formula
    covers it.
    """
    strategy = msgspec.structs.replace(subject.strategy, **changes)
    world = world_size(strategy)
    per_node = min(world, DEVICES_PER_NODE)
    batch = strategy.micro_batch * strategy.dp_replicate * strategy.dp_shard
    wider = msgspec.structs.replace(job, global_batch=batch)
    cluster = msgspec.structs.replace(
        subject.cluster,
        num_devices=world,
        num_nodes=-(-world // per_node),
        devices_per_node=per_node,
        link=_link(subject.cluster),
    )
    made = estimate(wider, cluster, strategy)
    # Refuse an estimate that took no notice of the other devices.
    alone = msgspec.structs.replace(
        strategy, zero=0, dp_replicate=1, dp_shard=1, tp=1, pp=1, accumulate="reduce-each"
    )
    if made.items == estimate(wider, subject.cluster, alone).items:
        raise UnsupportedError(
            f"this version has no formula for {world_size(strategy)} devices; brimful simulate and "
            f"brimful pretend run them"
        )
    return made


def _link(cluster: Cluster) -> str:
    from brimful.hardware.links import node_links

    sheet = datasheets().get(cluster.name)
    return node_links(sheet)[0].name if sheet else ""


def peak(made: Estimate) -> int:
    """Return the predicted peak in bytes."""
    return made.predicted_peak_allocated_bytes


def seconds(made: Estimate) -> float:
    """Return the predicted seconds per step."""
    if made.predicted_step_s is None:
        raise UnsupportedError("the device's rate for this recipe is unknown, and so is the time")
    return made.predicted_step_s


def item_bytes(made: Estimate, *names: str) -> int:
    """Add up items of the peak by name."""
    return sum(item.num_bytes for item in made.items if item.name in names)


def saved_per_sequence(subject: Subject, job: Job, **changes: Any) -> float:
    """Return what blocks save for backward, bytes per sequence.

    Read off a micro-batch so large that the peak lies where everything is saved: before the loss
    goes backward.
    """
    wide = msgspec.structs.replace(job, global_batch=MANY_SEQUENCES)
    made = run(subject, wide, micro_batch=MANY_SEQUENCES, **changes)
    return item_bytes(made, SAVED_ACTIVATIONS) / MANY_SEQUENCES


def held(job: Job) -> States:
    """Return what a run holds between steps: closed form, any model with a known layout."""
    return states(job, update_of(job, CUDA))


def num_parameters(job: Job) -> int:
    """Count the parameters of a job's model.

    Raises UnsupportedError: the model has no layout.
    """
    return parameter_count(job.model).total


def sheet_of(subject: Subject) -> Datasheet:
    """Return the datasheet of the subject's GPU."""
    sheet = datasheets().get(subject.cluster.name)
    if sheet is None:
        raise UnsupportedError(f"{subject.cluster.name} has no datasheet; use --gpus h100-80gb")
    return sheet
