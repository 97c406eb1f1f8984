"""A job as the fastest layout of Megatron-LM that fits, by its formulas."""

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from brimful.cost.outside import room_of
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster, matrix_rate
from brimful.hardware.cuda_chips import Version, version_of
from brimful.megatron.arguments import model_arguments
from brimful.megatron.command_line import read_layout
from brimful.megatron.layout import Layout
from brimful.megatron.recipe import BLACKWELL
from brimful.megatron.search import Asked, search
from brimful.megatron.speed import sequence_flops
from brimful.megatron.states import parameters
from brimful.models.config import exact_count
from brimful.programs.base import flags_of
from brimful.programs.megatron import SCRIPT
from brimful.techniques.optimizers import DEFAULT
from brimful.values.job import FP8, Job

_OF_RUN = ("--bf16", "--use-distributed-optimizer", "--overlap-grad-reduce",
           "--overlap-param-gather", "--no-create-attention-mask-in-dataloader")  # fmt: skip
"""16-bit parameters with fp32 copies and gradients, states sharded over replicas; FlashAttention
needs no mask."""


_MARGIN = 0.04
"""Of what is reserved: published runs reserved up to 3.7 % more than this replay (decision 96)."""


class Planned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A layout of Megatron-LM.

    Attributes:
        arguments: Of ``pretrain_gpt.py``: the model, the job and the layout; no data.
        layout: The arguments that were chosen.
        world_size: Processes.
        num_replicas: That each have a model of their own.
        predicted_step_s: Of a step.
        predicted_tokens_per_s: Of all GPUs.
        predicted_mfu: Share of the data sheet's rate that the model's operations alone take.
        predicted_flops_per_s: Of each GPU, of the model's operations alone.
        predicted_peak_allocated_bytes: Of the fullest process, as ``torch.cuda`` counts blocks.
        predicted_peak_reserved_bytes: What its allocator holds at most, by its replay.
        capacity_bytes: What the allocator can have there whatever lies outside of it, less 4 %.
        place: What runs at the peak.
        fits: Whether it fits.
        num_layouts: That were ordered by speed.
        num_looked_at: Of which memory was predicted.
        refused: A faster layout's arguments, which lacks room; empty: there is none.
        refused_bytes: What that would reserve.
        not_known: Arguments of the model that its sizes alone do not say, and that change no byte.
        left_out: What of the model no argument says, though it changes next to nothing of these.
    """

    arguments: tuple[str, ...]
    layout: tuple[str, ...]
    world_size: int
    num_replicas: int
    predicted_step_s: float
    predicted_tokens_per_s: float
    predicted_mfu: float
    predicted_flops_per_s: float
    predicted_peak_allocated_bytes: int
    predicted_peak_reserved_bytes: int
    capacity_bytes: int
    place: str
    fits: bool
    num_layouts: int
    num_looked_at: int
    refused: tuple[str, ...]
    refused_bytes: int
    not_known: tuple[str, ...]
    left_out: tuple[str, ...]


def plan_megatron(job: Job, cluster: Cluster, pins: dict[str, tuple[int, ...]]) -> Planned:
    """Return the fastest layout that fits; where none does, the one that lacks least.

    ``pins``: values that ``tp``, ``pp``, ``cp``, ``ep`` and ``micro_batch`` may have; what is not
    there is searched.
    """
    _check(job, cluster)
    capability = version_of(cluster.device.capability)
    recipe = _recipe(capability) if job.precision == FP8 else ()
    said = model_arguments(job.model)
    fixed = (*said.words, *_of_job(job), *_OF_RUN, *recipe)
    capacity = int(room_of(cluster.device).firm_bytes / (1 + _MARGIN))

    def told(flags: Sequence[str], world_size: int = cluster.num_devices) -> Layout:
        return read_layout(
            flags_of((*fixed, *flags), SCRIPT),
            vocab=job.model.vocab_size,
            world_size=world_size,
            stage=0,
            capability=capability,
            kind="gpt",
        )

    plain = told(("--micro-batch-size", "1"), 1)
    uncounted = _check_count(job, plain, said.num_more)
    asked = Asked(cluster, told, plain, job.global_batch, capacity, pins)
    found = search(asked)
    if found is None:
        raise InputError(
            f"no tp, pp, cp and ep divide the heads, layers, tokens and experts of "
            f"{job.model.name}, a global batch of {job.global_batch} and {cluster.num_devices} "
            f"GPUs; give another --global-batch or --gpus"
        )
    best = found.candidate
    rate = matrix_rate(cluster.device, FP8 if recipe else "bf16") * cluster.num_devices
    if not rate or not math.isfinite(best.step_s):
        raise UnsupportedError(
            f"the fastest layout is not known on {cluster.device.description}: a rate in "
            f"{'fp8' if recipe else 'bf16'} or a link is unknown; give other --gpus, as 8xh100"
        )
    fullest = max(found.peaks, key=lambda each: each.predicted_peak_reserved_bytes)
    refused = found.refused
    flops_per_s = job.global_batch * sequence_flops(plain) / best.step_s
    return Planned(
        arguments=(*fixed, *best.flags),
        layout=best.flags,
        world_size=cluster.num_devices,
        num_replicas=best.stages[0].dp,
        predicted_step_s=best.step_s,
        predicted_tokens_per_s=job.global_batch * job.seq_len / best.step_s,
        predicted_mfu=flops_per_s / rate,
        predicted_flops_per_s=flops_per_s / cluster.num_devices,
        predicted_peak_allocated_bytes=fullest.predicted_peak_allocated_bytes,
        predicted_peak_reserved_bytes=fullest.predicted_peak_reserved_bytes,
        capacity_bytes=capacity,
        place=fullest.place,
        fits=all(each.fits for each in found.peaks),
        num_layouts=found.num_all,
        num_looked_at=found.num_looked_at,
        refused=() if refused is None else refused[0].flags,
        refused_bytes=0 if refused is None else refused[1].predicted_peak_reserved_bytes,
        not_known=said.not_known,
        left_out=(*said.left_out, *uncounted),
    )


def _check(job: Job, cluster: Cluster) -> None:
    wanted = (
        ("method", job.method, ("full",)),
        ("task", job.task, ("causal-lm",)),
        ("optimizer", job.optimizer, (DEFAULT,)),
        ("precision", job.precision, ("bf16-master", FP8)),
    )
    for what, given, known in wanted:
        if given not in known:
            raise UnsupportedError(
                f"plan --for megatron has no formula for {what}={given}; use "
                f"{' or '.join(known)}, or another program"
            )
    if cluster.device.kernels != "cuda":
        raise UnsupportedError("plan --for megatron is of CUDA GPUs; give --gpus, as 8xh100")


def _recipe(capability: Version) -> tuple[str, ...]:
    """Return the recipe of fp8 that NVIDIA trains with: blocks since Blackwell, or one scale."""
    if capability >= BLACKWELL:
        return ("--fp8-format", "e4m3", "--fp8-recipe", "mxfp8")
    return ("--fp8-format", "hybrid", "--fp8-recipe", "tensorwise")


def _check_count(job: Job, plain: Layout, num_more: int) -> tuple[str, ...]:
    """Refuse a model that its arguments do not make: its parameters are counted both ways.

    ``num_more``: those that Megatron-LM is known to have beside the model's. Returns a sentence
    where nobody counted the model's.
    """
    official = exact_count(job.model)
    dense, experts = parameters(replace(plain, vocab=job.model.vocab_size))
    made = sum(dense) + sum(experts) - num_more
    if official is None:
        return (f"a count of the model itself to hold {made:,} parameters of its arguments to",)
    if made != official:
        raise UnsupportedError(
            f"Megatron-LM's arguments for {job.model.name} make {made:,} parameters, and it has "
            f"{official:,}; give a command line to brimful estimate --from"
        )
    return ()


def _of_job(job: Job) -> tuple[str, ...]:
    return tuple(
        map(
            str,
            (
                "--seq-length", job.seq_len, "--max-position-embeddings",
                max(job.seq_len, job.model.max_seq_len), "--global-batch-size", job.global_batch,
                "--vocab-size", job.model.vocab_size, "--lr", job.learning_rate,
                "--weight-decay", job.weight_decay, "--clip-grad", job.clip or 0.0,
                "--adam-beta1", job.beta1, "--adam-beta2", job.beta2,
                "--train-iters", job.num_steps,
            ),
        )
    )  # fmt: skip
