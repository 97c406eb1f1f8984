"""Rules on many GPUs: peaks and times are the estimate's; where it has no formula, unknown."""

import msgspec

from brimful.cost.states import held_bytes
from brimful.errors import UnsupportedError
from brimful.hardware.cluster import offered_bytes
from brimful.hardware.devices import cards
from brimful.models.config import load_model, parameter_count
from brimful.rules.base import Finding, Rule, compare, gibibytes, stated, times
from brimful.rules.subject import (
    Subject,
    full,
    held,
    low_rank,
    mixed,
    num_parameters,
    other_model,
    peak,
    run,
    run_many,
    seconds,
)
from brimful.search.ledger import LedgerRow, ledger
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.units import format_seconds
from brimful.values.job import Job

GROUP = "many GPUs"
NUM, LARGE = 8, 64
ADAPTED = frozenset({"lora", "qlora"})
STAGES = {1: (3.0, 5.0), 2: (8.0, 10.0), 3: (15.0, float("inf"))}
"""What the rule says each stage saves, in times."""


def sharded_state(subject: Subject, stage: int, num: int) -> float:
    """Return by how many times a stage shrinks what is held: closed form, no gathers or buckets.

    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5, with the bytes of our recipe.
    """
    kept = held(full(subject, "bf16-master"))
    parts = [kept.optimizer_state, kept.gradients, kept.trained]
    shares = [part / num if index < stage else part for index, part in enumerate(parts)]
    return float(sum(parts) / sum(shares))


def _zero(subject: Subject) -> Finding:
    """Peaks of the three stages on 8 devices, over that of plain data parallelism."""
    job = full(subject, "bf16-master")
    try:
        whole = peak(run_many(subject, job, dp_replicate=NUM))
    except UnsupportedError:  # no trace of it is here; 16 B a parameter are held by both
        job = mixed(subject)
        whole = peak(run_many(subject, job, dp_replicate=NUM))
    found = {
        stage: whole / peak(run_many(subject, job, zero=stage, dp_shard=NUM)) for stage in STAGES
    }
    holds = all(low * 0.9 <= found[stage] <= high * 1.1 for stage, (low, high) in STAGES.items())
    limits = ", ".join(times(sharded_state(subject, stage, LARGE)) for stage in STAGES)
    return stated(
        "holds" if holds else "holds only when",
        says="3-5 x, 8-10 x, 15 x",
        ours=f"{', '.join(map(times, found.values()))} of the peak on {NUM}, {job.precision}, "
        f"predicted",
        why=f"what is held is counted alone, with fp32 masters, on many devices: on {LARGE} it is "
        f"{limits}. Activations are not sharded, and gathers and buckets come on top",
    )


def _zero_comm(subject: Subject) -> Finding:
    """Step time of stage 3 over that of plain data parallelism, of what the job trains."""
    job, method = mixed(subject), subject.job.method
    volume = (
        "The volume is 1.5 x: parameters gathered twice and gradients scattered, against an "
        "all-reduce"
    )
    if method in ADAPTED:
        job = low_rank(subject, job.precision, method)
        volume = (
            "The volume is far more than 1.5 x: the frozen base is gathered twice, where plain "
            "data parallelism exchanges the adapters' gradients alone"
        )
    whole = run_many(subject, job, dp_replicate=NUM)
    need, usable = peak(whole), offered_bytes(subject.cluster)
    sharded = seconds(run_many(subject, job, zero=3, dp_shard=NUM))
    holds = "fits" if need <= usable else "does not fit, so that there is no choice"
    return compare(
        1.3,
        sharded / seconds(whole),
        times,
        why=f"of the step's time on {NUM} devices with a whole copy on each, which takes "
        f"{gibibytes(need)} of {gibibytes(usable)} and {holds}. {volume}; overlap "
        f"hides part of it, and the update, which is sharded too, takes less",
        rung="of the time, predicted",
    )


def _zero_7b(subject: Subject) -> Finding:
    """16 B of 7e9 parameters, and its eighth."""
    job = other_model(subject, "llama-2-7b", seq_len=1)
    whole = held_bytes(job)
    found = compare(
        280e9,
        whole,
        gibibytes,
        why=f"the eighth is right, the whole is not: 40 B per parameter is no recipe, and with 16 "
        f"the share on {NUM} devices is {gibibytes(whole / NUM)} before activations and gathers",
        rung="held, llama-2-7b",
    )
    return msgspec.structs.replace(found, says=f"280 GB, {280 / NUM:.0f} GB of {NUM}")


def _tensor(subject: Subject) -> Finding:
    """The largest layer against the device."""
    job = mixed(subject)
    count = parameter_count(job.model)
    block = max(count.block, count.embedding) * held_bytes(job) / count.total
    usable = offered_bytes(subject.cluster)
    return stated(
        "holds only when",
        says="a layer fits one card",
        ours=f"the largest layer holds {gibibytes(block)} of {gibibytes(usable)}",
        why="the batch is too small to shard over data and the link as fast as NVLink; that a "
        "layer fits decides nothing, since nearly every layer of every model does",
    )


def _pipeline(subject: Subject) -> Finding:
    """What is held, on one device and sharded over eight."""
    job = mixed(subject)
    whole, usable = held_bytes(job), offered_bytes(subject.cluster)
    exceeds = whole > usable
    made = run_many(subject, job, zero=3, dp_shard=NUM, activation_checkpointing="full")
    return stated(
        "holds only when" if exceeds and made.fits else "holds",
        says="pipeline" if exceeds else "no pipeline",
        ours=f"{gibibytes(whole)} held, {gibibytes(usable)} usable; ZeRO-3 on {NUM} "
        f"{'fits' if made.fits else 'does not fit'} with {gibibytes(peak(made))}",
        why="the network is slow: sharding answers the same need without a bubble, and stages "
        "send activations only",
    )


def _staged(subject: Subject) -> Finding:
    """8 x 16 devices: what divides, and the bytes of one device's share."""
    model = load_model("llama-2-70b")
    job = other_model(subject, "llama-2-70b", seq_len=model.max_seq_len)
    divides = not (model.num_heads % 8 or model.num_kv_heads % 8 or model.num_layers % 16)
    share = held_bytes(job) / (8 * 16)
    return stated(
        "not checkable here",
        says="tp=8, pp=16",
        ours=f"{'divides' if divides else 'does not divide'} {model.num_heads} heads, "
        f"{model.num_kv_heads} key-value heads, {model.num_layers} layers; {gibibytes(share)} "
        f"held a device",
        why="it can run; whether anybody ran it so is not for arithmetic to say",
    )


def _order(subject: Subject) -> Finding:
    """The order of our own ledger, whose every step is estimated: that of the plan."""
    plan = subject.plan
    if plan is None:
        pins, attention = Pins(None, None, None), subject.strategy.attention
        job = mixed(subject)
        plan = solve(job, subject.cluster, pins, attention=attention, objective="time").plan
    rows = ledger(plan.job, plan.cluster, plan.strategy)
    planned = [row for row in rows if row.owner == "planner"]
    first = planned[0].switch if planned else "nothing"
    return stated(
        "holds" if first == "checkpointing" else "holds only when",
        says="mixed precision, checkpointing, ZeRO-3",
        ours=", ".join(row.switch for row in rows) or "the naive run is the plan",
        why=f"the planner's own switches begin with {first}: "
        + "; ".join(map(_row_words, rows))
        + "; LoRA changes what is learnt and is no step of it",
    )


def _row_words(row: LedgerRow) -> str:
    """Spell what a row saves and costs."""
    saved, added = row.saved_bytes, row.added_s
    if saved is None:
        return f"{row.switch} comes from an unknown run"
    pays = ""
    if added is not None:
        pays = f" and {'costs' if added > 0 else 'saves'} {format_seconds(abs(added))} a step"
    return f"{row.switch} {'saves' if saved >= 0 else 'adds'} {gibibytes(abs(saved))}{pays}"


def _budget(subject: Subject) -> Finding:
    """The smallest GPU on which one plan fits."""
    job = full(subject, subject.job.precision)
    smallest = _smallest(subject, job)
    return stated(
        "not checkable here",
        says="capacity, then count",
        ours=f"the smallest known GPU that holds {job.model.name} alone: {smallest}",
        why="which is cheaper hangs on prices and on how long you can wait: brimful shop",
    )


def _smallest(subject: Subject, job: Job) -> str:
    for device in cards():
        cluster = msgspec.structs.replace(subject.cluster, name=device.name, device=device)
        try:
            if run(subject._replace(cluster=cluster), job, activation_checkpointing="full").fits:
                return device.name
        except UnsupportedError:
            continue  # its kernels are not known
    return "none"


def _int8_after(subject: Subject) -> Finding:
    num = num_parameters(subject.job)
    trained = held(mixed(subject)).parameters
    return stated(
        "holds",
        says="a step of its own",
        ours=f"{gibibytes(trained)} after bf16-mixed, {gibibytes(num)} in int8",
        why="mixed precision leaves fp32 weights behind, none of them in 8 bits",
    )


def throughput_gain(subject: Subject, name: str) -> float:
    """Return how much faster 8 devices train in 16 bits with ZeRO-2 than in TF32 with DDP."""
    model = load_model(name)
    fields = {"model": model, "seq_len": model.max_seq_len, "task": "causal-lm"}
    slow, fast = (
        msgspec.structs.replace(full(subject, recipe), packing="wrapped", **fields)
        for recipe in ("tf32", "bf16-mixed")
    )
    plain = seconds(run_many(subject, slow, dp_replicate=NUM))
    return plain / seconds(run_many(subject, fast, zero=2, dp_shard=NUM)) - 1


DEVICE_RULES = (
    Rule("zero-123", GROUP, "ZeRO-1, -2, -3 shard optimizer, gradients, parameters",
         "3-5 x, 8-10 x, 15 x and more", _zero),
    Rule("zero3-comm", GROUP, "ZeRO-3 communicates more", "+30 %", _zero_comm),
    Rule("zero3-7b", GROUP, "LLaMA-2 7B with ZeRO-3 + fp16, one GPU's share",
         "280 GB to 35 GB", _zero_7b),
    Rule("tp-when", GROUP, "Tensor parallel when a layer fits one card; frequent all-reduce", "-",
         _tensor),
    Rule("pp-when", GROUP, "Pipeline when the model exceeds one card", "-", _pipeline),
    Rule("llama2-70b", GROUP, "LLaMA-2 70B ran 8-way tensor x 16-way pipeline", "8 x 16", _staged),
    Rule("order", GROUP,
         "First mixed precision and checkpointing, then ZeRO-3 and model parallel, then LoRA", "-",
         _order),
    Rule("budget", GROUP, "Memory first, then number of cards; one big beats several small", "-",
         _budget),
    Rule("infer-int8", GROUP, "int8 deployment needs its own quantisation step", "-",
         _int8_after),
)  # fmt: skip
