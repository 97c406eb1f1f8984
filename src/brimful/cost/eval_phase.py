"""Peaks of what a run does besides its steps: judging held-out batches, saving, resuming.

Judging is a forward pass without gradients on top of what is resident behind a step. What it
allocates is traced as a step's is (``simulate.profile``), into profiles of their own: the same
operations, of which nothing is kept for a backward pass, so that checkpointing makes no difference.
A step's forward pass has all of it alive too: none of these phases is ever a run's peak, and a test
holds that.

Saving names the memory that trains and copies it to the host, so that a device holds what it
held. Resuming makes the optimizer's state anew beside the loaded model, in the place where the
first step would have made it.
"""

from brimful.cost.additions import Way
from brimful.cost.family import Family, family_counts, family_of, family_variant, runs_one
from brimful.cost.memory import StepMemory, Steps, describe_run, step_sizes
from brimful.cost.own_programs import chosen_program
from brimful.cost.preference import asked_bytes
from brimful.cost.profiles import EVALUATED, is_shipped, load_profile
from brimful.cost.programs import HALF, kernels_of
from brimful.cost.spread import spread_runs
from brimful.cost.trajectory import follow_step
from brimful.hardware.cluster import Device
from brimful.values.job import Job
from brimful.values.plan import PhasePeak
from brimful.values.results import EVAL, RESUME, SAVE
from brimful.values.strategy import Strategy


def other_phases(
    job: Job, strategy: Strategy, device: Device, memory: StepMemory
) -> tuple[PhasePeak, ...]:
    """Return the peaks of judging, saving and resuming, on one device.

    Exact as the step's are. Judging is left out where its profile is not shipped.

    ``memory``: of its step (``memory.step_memory``).
    """
    save, resume = resting_phases(memory)
    judged = _judged(job, strategy, device)
    if judged is None:
        return save, resume
    above, where = judged
    return PhasePeak(phase=EVAL, num_bytes=save.num_bytes + above, where=where), save, resume


def resting_phases(memory: StepMemory) -> tuple[PhasePeak, PhasePeak]:
    """Return the peaks of saving and resuming."""
    resumed = memory.states.loaded + memory.states.optimizer_state
    resident = resumed + memory.blas + memory.room
    return (
        PhasePeak(phase=SAVE, num_bytes=resident, where="what is resident: no copy is made"),
        PhasePeak(phase=RESUME, num_bytes=resumed, where="optimizer state, read into place"),
    )


def _judged(job: Job, strategy: Strategy, device: Device) -> tuple[int, str] | None:
    """Return the peak of one held-out batch above what is resident, and where that lies."""
    family = family_of(job, strategy)._replace(body="plain", num_blocks=0, recompute="full")
    attention, gathers, tp, ep = strategy.attention, family.gathers, family.tp, family.ep
    program = chosen_program(
        job, attention, kernels_of(device, family.fused), "full",
        gathers=gathers, tp=tp, ep=ep, is_one=runs_one(job, family),
    )  # fmt: skip
    key = f"{program.key}{EVALUATED}"
    if family.away.parameters or not is_shipped(key):
        return None
    steps = _steps(job, key, family)
    sizes = step_sizes(job, steps, family, by_item=False)
    peak, runs = follow_step(steps, sizes, family_counts(job, family))
    asked = asked_bytes(job, family, strategy.attention, device)
    if asked > peak.level[0, 0]:
        return asked, "forward of the reference model"
    return round(float(peak.level[0, 0])), describe_run(runs, int(peak.run[0]))


def _steps(job: Job, key: str, family: Family) -> Steps:
    """Return what the first batch runs: in later ones what is gathered stays, and no more comes."""
    profile = load_profile(key)
    runs = family_variant(job, profile, family).first
    if not family.gathers:
        return [(profile, runs)]
    widens, tied = job.precision in HALF, job.model.tied_embeddings
    way = Way(
        zero=family.zero,
        accumulate=family.accumulate,
        is_first=True,
        is_last=True,
        widens=widens,
        tied=tied,
        is_flat=family.is_flat,
    )
    return [spread_runs(profile, runs, way)]
