"""What a layout of DeepSeek-V3 costs, from traces of its blocks: no formula covers parted experts.

The tape of the pretend GPU counts what a block computes and sends, in models that differ by one
block; the first rung's rates and links turn both into seconds. Gathering, reducing and the update
are in closed form, stages are replayed operation by operation. Routing is balanced, and nothing
hides the messages to experts: our build waits for them.
"""

from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np
import scale_ceiling
from rehearsal_rows import LayoutCost

from brimful.cost.attending import scores_of
from brimful.cost.comm import collective_seconds, overlapped_seconds
from brimful.cost.efficiency import size_of
from brimful.cost.pipeline_replay import replay
from brimful.cost.recipes import RECIPES
from brimful.cost.shards import computed_bytes
from brimful.cost.step import StepWork, step_seconds, traffic_of_update
from brimful.hardware.cluster import Cluster, Device, matrix_rate
from brimful.models.config import layout_of, read_config
from brimful.models.layout import num_elements, parts
from brimful.models.mixtures import known_experts
from brimful.models.spec import ModelSpec
from brimful.pretend.recording import Recording
from brimful.simulate.attempt import step_work
from brimful.simulate.messages import ALL_TO_ALL, collectives_of_step
from brimful.simulate.run import NUM_STEPS, trace
from brimful.techniques.parallel.stages import blocks_of_stages, stages_of_device
from brimful.values.job import Job
from brimful.values.strategy import Strategy, data_parallel, num_micro_batches, split_of, stage_rank

FORWARD_SHARE = {"full": 1 / 4, "selective": 1 / 3, "none": 1 / 3}
"""Of a micro-batch's work that is forward: a backward's products are those of two forwards, and
``full`` computes one forward again."""
_NUM_MOMENTS = 2
_ZERO_3 = 3
_SMALL = {"one each": (2, 1), "a sparse more": (3, 1), "a dense more": (3, 2)}
"""Blocks, and how many of them are dense, of the models that are traced."""


class Counted(NamedTuple):
    """What a device does and sends for one micro-batch.

    Attributes:
        work: [matrix FLOPs, attention FLOPs, moved bytes, operations].
        sent_bytes: To other devices with experts.
        num_sent: In how many messages.
    """

    work: tuple[float, ...]
    sent_bytes: float
    num_sent: float

    def less(self, other: "Counted") -> "Counted":
        """Return the difference."""
        work = tuple(a - b for a, b in zip(self.work, other.work, strict=True))
        return Counted(work, self.sent_bytes - other.sent_bytes, self.num_sent - other.num_sent)


class Weights(NamedTuple):
    """Parameters of a block, or of what is no block: shared by all devices, and of experts."""

    shared: int
    experts: int


class Part(NamedTuple):
    """A block, or what is no block, on one device."""

    counted: Counted
    weights: Weights


def cost_of(job: Job, cluster: Cluster, strategy: Strategy) -> LayoutCost:
    """Cost a step of a layout; ``exchange_s`` are the messages to experts.

    Args:
        job: What is trained; DeepSeek-V3's kind of model.
        cluster: On what.
        strategy: How; all of its blocks are checkpointed alike.
    """
    devices, num = parts_of(job, strategy), num_micro_batches(job, strategy)
    work = [sum(work_seconds(part.counted, job, cluster, strategy) for part in own)
            for own in devices]  # fmt: skip
    sent = [sum(message_seconds(part.counted, cluster, strategy) for part in own)
            for own in devices]  # fmt: skip
    busy = [own + waited for own, waited in zip(work, sent, strict=True)]
    kind = strategy.activation_checkpointing
    forward = FORWARD_SHARE[kind]
    ran = replay(
        strategy.pp_schedule,
        num_micro_batches=num,
        stage_s=[(forward * each, (1 - forward) * each) for each in busy],
        send_s=_send_seconds(job, cluster, strategy),
        chunks=strategy.stages_per_device,
    )
    traffic = max(traffic_seconds(job, own, cluster, strategy, num) for own in devices)
    beside = float(overlapped_seconds(np.asarray(ran.total_s), np.asarray(traffic)))
    update = max(update_seconds(job, own, cluster, strategy) for own in devices)
    slowest, step = busy.index(max(busy)), beside + update
    return LayoutCost(
        work_s=num * work[slowest],
        again_s=num * work[slowest] * forward if kind == "full" else 0.0,
        exchange_s=num * sent[slowest],
        bubble_s=ran.total_s - num * busy[slowest],
        exposed_s=beside - ran.total_s,
        update_s=update,
        bubble_share=max(0.0, ran.bubble_share),
        step_s=step,
        tokens_per_s=job.tokens_per_step / step / cluster.num_devices,
        mfu=ideal_seconds(job, cluster) / step,
    )


def ideal_seconds(job: Job, cluster: Cluster) -> float:
    """Return what the model's own FLOPs take, nothing computed twice, at the data sheet's rate."""
    flops = job.tokens_per_step * sum(scale_ceiling.flops_per_token(job.seq_len))
    return flops / (matrix_rate(cluster.device, job.precision) * cluster.num_devices)


def parts_of(job: Job, strategy: Strategy) -> list[list[Part]]:
    """Return the parts that each device of a row has; what is no block counts with the head's."""
    split, sparse = split_of(strategy), set(known_experts(job.model).sparse_blocks)
    each, blocks = _parts(_alone(job, strategy), _few(strategy)), blocks_of_stages(job.model, split)
    found = []
    for device in range(strategy.pp):
        stages = stages_of_device(split, device)
        own = [
            each["sparse" if block in sparse else "dense"] for s in stages for block in blocks[s]
        ]
        found.append([*own, each["ends"]] if split.num_stages - 1 in stages else own)
    return found


def weights_of(model: ModelSpec) -> Weights:
    """Count the parameters of a whole model."""
    shared = experts = 0
    for parameters, times in parts(layout_of(model)):
        routed = num_elements(p for p in parameters if p.kind == "experts")
        experts += times * routed
        shared += times * (num_elements(parameters) - routed)
    return Weights(shared, experts)


def least_bytes(job: Job, num_devices: int) -> int:
    """Return what parameters, gradients and state take on each of so many devices."""
    return -(-sum(weights_of(job.model)) * _held_bytes(job) // num_devices)


def bound_bytes(job: Job, strategy: Strategy) -> float:
    """Return what the fullest device of a layout holds at least, activations left out.

    Its shards; under ZeRO-2 beside stages whole gradients too, and gathered parameters, which stay
    from forward to backward.
    """
    recipe, element = RECIPES[job.precision], computed_bytes(job.precision)
    whole = 0 if strategy.zero == _ZERO_3 else recipe.gradient + element
    return max(
        sum(
            sum(part.weights) / strategy.dp_shard * _held_bytes(job)
            + _here(part.weights, strategy) * whole
            for part in own
        )
        for own in parts_of(job, strategy)
    )


def _held_bytes(job: Job) -> int:
    recipe = RECIPES[job.precision]
    kept = recipe.parameter + recipe.gradient + recipe.master
    return kept + _NUM_MOMENTS * recipe.updated


def work_seconds(counted: Counted, job: Job, cluster: Cluster, strategy: Strategy) -> float:
    """Return the seconds of a micro-batch's own work, by the roofline of the first rung."""
    work = StepWork(*(np.array([amount]) for amount in counted.work))
    scores = scores_of(job, strategy.attention, cluster.device)
    timed = step_seconds(work, job, cluster.device, size_of(job, strategy.micro_batch), scores)
    assert timed is not None, "the rates of these GPUs are known"
    return float(sum(part[0] for part in timed))


def message_seconds(counted: Counted, cluster: Cluster, strategy: Strategy) -> float:
    """Return the seconds of a micro-batch's messages to experts, one after another.

    Devices with different experts are neighbours.
    """
    if not counted.num_sent:
        return 0.0
    each = counted.sent_bytes / counted.num_sent
    one = collective_seconds("all-to-all", each, strategy.ep, cluster)
    return counted.num_sent * float(one)


def traffic_bytes(job: Job, own: list[Part], strategy: Strategy, num: int) -> tuple[float, float]:
    """Return the bytes that a device gathers and reduces in a step, experts' shares of others out.

    ZeRO-3 gathers blocks twice for every micro-batch and the rest once, and reduces each time;
    beside stages gathers and reductions of ZeRO-2 happen once a step.
    """
    gathered, reduced = (
        sum(amount * _here(part.weights, strategy) for part, amount in pairs)
        for pairs in (_gathers(own, strategy, num), _reductions(own, strategy, num))
    )
    recipe = RECIPES[job.precision]
    return gathered * computed_bytes(job.precision), reduced * recipe.gradient


def _gathers(own: list[Part], strategy: Strategy, num: int) -> list[tuple[Part, int]]:
    again = strategy.zero == _ZERO_3
    times = num if again or strategy.pp == 1 else 1
    return [(part, times * (1 + (again and _is_block(part)))) for part in own]


def _reductions(own: list[Part], strategy: Strategy, num: int) -> list[tuple[Part, int]]:
    return [(part, num if strategy.accumulate == "reduce-each" else 1) for part in own]


def _is_block(part: Part) -> bool:
    return part.counted.work[1] > 0  # attention; the rest has none


def _here(weights: Weights, strategy: Strategy) -> float:
    return weights.shared + weights.experts / strategy.ep


def traffic_seconds(
    job: Job, own: list[Part], cluster: Cluster, strategy: Strategy, num: int
) -> float:
    """Return the seconds of gathering and reducing in a step, one collective after another."""
    total = 0.0
    recipe, element = RECIPES[job.precision], computed_bytes(job.precision)
    for pairs, kind, size in (
        (_gathers(own, strategy, num), "all-gather", element),
        (_reductions(own, strategy, num), "reduce-scatter", recipe.gradient),
    ):
        for part, times in pairs:
            total += times * _sharded_seconds(kind, part.weights, size, cluster, strategy)
    for part, times in _reductions(own, strategy, num):
        held = sum(part.weights) / strategy.dp_shard * recipe.gradient
        total += times * float(
            collective_seconds(
                "all-reduce", held, strategy.dp_replicate, cluster, strategy.dp_shard
            )
        )
    return total


def _sharded_seconds(
    kind: object, weights: Weights, size: int, cluster: Cluster, strategy: Strategy
) -> float:
    """Return the seconds of a part: all devices share most of it, those of ``ep`` the experts."""
    ranks, ep = strategy.dp_shard, strategy.ep
    name = "all-gather" if kind == "all-gather" else "reduce-scatter"
    shared = collective_seconds(name, weights.shared * size, ranks, cluster)
    if not weights.experts:
        return float(shared)
    own = weights.experts / ep * size
    return float(shared) + float(collective_seconds(name, own, ranks / ep, cluster, ep))


def update_seconds(job: Job, own: list[Part], cluster: Cluster, strategy: Strategy) -> float:
    """Return the seconds of clip and update of what a device holds."""
    recipe = RECIPES[job.precision]
    held = sum(sum(part.weights) for part in own) / strategy.dp_shard
    kept = (recipe.parameter + recipe.master + _NUM_MOMENTS * recipe.updated) * held
    moved = traffic_of_update(gradients=recipe.gradient * held, kept=kept)
    return work_seconds(Counted((0.0, 0.0, moved, 0.0), 0.0, 0.0), job, cluster, strategy)


def _send_seconds(job: Job, cluster: Cluster, strategy: Strategy) -> float:
    """Return the seconds of a message between stages."""
    if strategy.pp == 1:
        return 0.0
    numbers = strategy.micro_batch * job.seq_len * job.model.hidden_size
    num_bytes = numbers * computed_bytes(job.precision)
    return float(collective_seconds("send", num_bytes, 2, cluster, data_parallel(strategy)))


def _alone(job: Job, strategy: Strategy) -> Job:
    """Return the job of few sequences: three micro-batches on each of the experts' devices."""
    return msgspec.structs.replace(job, global_batch=3 * strategy.micro_batch * strategy.ep)


def _few(strategy: Strategy) -> Strategy:
    """Return the layout of one copy without stages, on the experts' devices."""
    return Strategy(
        micro_batch=strategy.micro_batch,
        activation_checkpointing=strategy.activation_checkpointing,
        loss_chunks=strategy.loss_chunks,
        attention=strategy.attention,
        zero=3,
        dp_shard=strategy.ep,
        ep=strategy.ep,
    )


_KNOWN: dict[tuple[str, Strategy], dict[str, Part]] = {}


def _parts(job: Job, strategy: Strategy) -> dict[str, Part]:
    key = f"{job.precision} {job.seq_len} {job.model.name}", strategy
    if key not in _KNOWN:
        _KNOWN[key] = _traced_parts(job, strategy)
    return _KNOWN[key]


def _traced_parts(job: Job, strategy: Strategy) -> dict[str, Part]:
    """Trace models that differ by one block, and take them from each other."""
    found = {}
    for name, sizes in _SMALL.items():
        small = msgspec.structs.replace(job, model=small_model(job.model, *sizes))
        weights = weights_of(small.model)
        found[name] = Part(_counted(small, strategy), weights)
    one = found["one each"]
    sparse, dense = (_less(found[name], one) for name in ("a sparse more", "a dense more"))
    return {"sparse": sparse, "dense": dense, "ends": _less(_less(one, sparse), dense)}


def _less(part: Part, other: Part) -> Part:
    weights = Weights(*(a - b for a, b in zip(part.weights, other.weights, strict=True)))
    return Part(part.counted.less(other.counted), weights)


def small_model(model: ModelSpec, num_layers: int, num_dense: int) -> ModelSpec:
    """Return the model with fewer blocks, the first of them dense."""
    config = {
        **model.hf_config, "model_type": model.model_type, "num_hidden_layers": num_layers,
        "first_k_dense_replace": num_dense,
    }  # fmt: skip
    return read_config(model.name, config)


def _counted(job: Job, strategy: Strategy) -> Counted:
    """Trace two micro-batches of a model; the second is like every later one."""
    recording = _trace(job, strategy)
    two, three = (_amounts(recording, num) for num in (2, 3))
    return three.less(two)


@cache
def _device() -> Device:
    return scale_ceiling.cluster_of_reported().device


def _trace(job: Job, strategy: Strategy) -> Recording:
    return trace(
        job, strategy, imitate="cuda", capability=_device().capability, count_costs=True,
        count_messages=True,
    ).recording  # fmt: skip


def _amounts(recording: Recording, num: int) -> Counted:
    work = tuple(float(column[0]) for column in step_work(recording, num, _device()))
    found = collectives_of_step(recording, step=NUM_STEPS, num_micro_batches=num)
    (sent,) = [one for one in found if one.kind == ALL_TO_ALL]
    return Counted(work, float(sent.num_bytes), float(sent.num_calls))


def places_of(strategy: Strategy) -> tuple[int, ...]:
    """Return the ranks of the places of a row that are simulated: the first and the last."""
    return tuple(dict.fromkeys(stage_rank(strategy, place) for place in (0, strategy.pp - 1)))
