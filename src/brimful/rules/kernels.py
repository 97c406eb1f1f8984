"""Rules on checkpointing, offload and attention kernels."""

import msgspec

from brimful.hardware.cluster import AMPERE
from brimful.models.config import load_model
from brimful.rules.base import (
    TOLERANCE,
    Finding,
    Rule,
    compare,
    compare_range,
    gibibytes,
    percent,
    stated,
    times,
)
from brimful.rules.subject import (
    Subject,
    full,
    item_bytes,
    mixed,
    num_parameters,
    peak,
    run,
    saved_per_sequence,
    seconds,
)
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.values.plan import Estimate
from brimful.values.results import SAVED_ACTIVATIONS

GROUP = "checkpointing, offload, attention"
HALF = 2
OFFLOAD_FACTOR = 1.5
GPT3_SEQ_LEN = 2048


def _saves(subject: Subject) -> Finding:
    """1 - saved activations with all blocks recomputed / with none."""
    job = full(subject, subject.job.precision)
    plain, recomputed = _recomputed(subject)
    saved = [
        saved_per_sequence(subject, job, activation_checkpointing=kind) for kind in ("none", "full")
    ]
    whole = 1 - peak(recomputed) / peak(plain)
    return compare_range(
        (0.5, 0.8),
        1 - saved[1] / saved[0],
        percent,
        why=f"of what blocks save, {gibibytes(saved[0])} a sequence; of the whole peak "
        f"it is {percent(whole)}, {gibibytes(peak(plain))} to {gibibytes(peak(recomputed))}, since "
        f"what is held stays",
    )


def _recomputed(subject: Subject) -> tuple[Estimate, Estimate]:
    job = full(subject, subject.job.precision)
    return run(subject, job), run(subject, job, activation_checkpointing="full")


def _costs(subject: Subject) -> Finding:
    """Step time with all blocks recomputed, over that with none."""
    plain, recomputed = _recomputed(subject)
    selective = _selective(subject, seconds(plain))
    return compare_range(
        (0.2, 0.3),
        seconds(recomputed) / seconds(plain) - 1,
        percent,
        why=f"a forward is a third of a step, so that one more costs 33 % at most{selective}",
    )


def _selective(subject: Subject, plain_s: float) -> str:
    from brimful.errors import UnsupportedError

    job = full(subject, subject.job.precision)
    try:
        made = run(subject, job, activation_checkpointing="selective")
    except UnsupportedError:
        return ""
    return f"; keeping matrix products and attention costs {percent(seconds(made) / plain_s - 1)}"


def _gpt3(subject: Subject) -> Finding:
    """GPT-3 175B: fp32 without against 16 bits with checkpointing."""
    model = load_model("gpt3-175b")
    jobs = [
        msgspec.structs.replace(
            full(subject, name), model=model, seq_len=GPT3_SEQ_LEN, task="causal-lm",
            packing="wrapped",
        )
        for name in ("fp32", "fp16-master")
    ]  # fmt: skip
    plain = run(subject, jobs[0], attention="eager")
    saved = run(subject, jobs[1], attention="eager", activation_checkpointing="full")
    sequence = [
        saved_per_sequence(subject, job, attention="eager", activation_checkpointing=kind)
        for job, kind in zip(jobs, ("none", "full"), strict=True)
    ]
    batch = subject.strategy.micro_batch
    return compare(
        0.78,
        1 - peak(saved) / peak(plain),
        percent,
        why=f"{gibibytes(peak(plain))} to {gibibytes(peak(saved))} with micro_batch={batch}: the "
        f"16 B per parameter of either recipe stay; of what blocks save it takes "
        f"{percent(1 - sequence[1] / sequence[0])}",
    )


def _offload(subject: Subject) -> Finding:
    """The smallest peak of any strategy, in units of the 16-bit parameters."""
    job = full(subject, subject.job.precision)
    parameters = num_parameters(job) * HALF
    pins, attention = Pins(None, None, None), subject.strategy.attention
    found = solve(job, subject.cluster, pins, attention=attention, objective="memory").plan.estimate
    assert found is not None
    have = found.usable_bytes / parameters
    rule_fits = have >= OFFLOAD_FACTOR
    return stated(
        "holds" if rule_fits == found.fits else "wrong",
        says=f"{'no need' if rule_fits else 'offload'}: the GPU has {have:.2g} x",
        ours=f"{'fits' if found.fits else 'does not fit'} without: the smallest peak of any "
        f"strategy is {peak(found) / parameters:.2g} x",
        why=f"parameters in 16 bits are {gibibytes(parameters)}; {job.precision} holds gradients "
        f"and moments besides. brimful simulate --offload parameters says what is left of it",
    )


def _without_flash(subject: Subject, says: str) -> Finding | None:
    """Say that no FlashAttention runs on a GPU; None: it does."""
    device = subject.cluster.device
    if device.kernels != "cuda" or device.capability >= AMPERE:
        return None
    return stated(
        "not checkable here",
        says=says,
        ours=f"compute capability {device.capability}",
        why=f"PyTorch's FlashAttention needs {AMPERE}; what runs instead is another kernel",
    )


def _flash_activations(subject: Subject) -> Finding:
    """Saved activations as a share of the peak, with PyTorch's fused kernel."""
    says = f"{percent(TOLERANCE)} of the peak at most"
    if (none := _without_flash(subject, says)) is not None:
        return none
    job = mixed(subject)
    fused = run(subject, job)
    saved = item_bytes(fused, SAVED_ACTIVATIONS)
    share = saved / peak(fused)
    each, written = (
        saved_per_sequence(subject, job, attention=kind)
        for kind in (subject.strategy.attention, "eager")
    )
    return stated(
        "holds" if share <= TOLERANCE else "wrong",
        says=says,
        ours=f"{percent(share)} of the peak predicted, {gibibytes(saved)}",
        why=f"of {job.seq_len} tokens blocks save {gibibytes(each)} with it and "
        f"{gibibytes(written)} with scores written out: it spares the scores alone, which grow "
        f"with the square; projections, norms and the MLP save as much as before. More texts at "
        f"once save as many times more, checkpointing nearly all of it",
    )


def _flash(subject: Subject) -> Finding:
    """Step time with written-out attention over that with PyTorch's fused kernel."""
    if (none := _without_flash(subject, "1.3 to 4 x")) is not None:
        return none
    job = mixed(subject)
    eager, fused = run(subject, job, attention="eager"), run(subject, job)
    return compare_range(
        (1.3, 4.0),
        seconds(eager) / seconds(fused),
        times,
        why=f"1.3 to 2 x is said of the first, 2 to 4 x of the second, which PyTorch has; it "
        f"hangs on the sequence, here {job.seq_len}. It also saves "
        f"{gibibytes(peak(eager) - peak(fused))} of the peak",
    )


KERNEL_RULES = (
    Rule("ckpt-saves", GROUP, "Checkpointing saves activation memory",
         "60 to 70 %, also 50 to 80 %", _saves),
    Rule("ckpt-costs", GROUP, "Checkpointing slows training", "20 to 30 %", _costs),
    Rule("gpt3-78", GROUP, "GPT-3: checkpointing + fp16", "saves 78 %", _gpt3),
    Rule("offload-when", GROUP,
         "Offload parameters when GPU memory is less than 1.5 x the model's parameters", "1.5 x",
         _offload),
    Rule("flash", GROUP, "FlashAttention trains faster, FlashAttention-2 more so",
         "1.3 to 2 x, 2 to 4 x", _flash),
    Rule("flash-activations", GROUP, "With flash attention activations do not matter",
         "next to nothing beside the states", _flash_activations),
)  # fmt: skip
