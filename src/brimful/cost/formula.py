"""Which jobs the first rung has a formula for. What it has none for is unknown here, not guessed.

Formulas come from traces (``profiles.py``), so this is a list of the programs that were traced:
those that ship, and what was traced on this machine when first asked for (``own_programs.py``).
"""

from collections.abc import Iterable

from brimful.cost.deepspeed_engine import alone_of, missing_engine
from brimful.cost.family import family_chunks, family_of, runs_one
from brimful.cost.needed import needed, traced_job
from brimful.cost.own_programs import (
    SHIPPED_AGAIN,
    SHIPPED_TASKS,
    Need,
    chosen_program,
    has_several_kinds,
    is_foreseen,
    missing_needs,
    shipped_settings,
)
from brimful.cost.preference import missing_reference
from brimful.cost.profiles import has_profile, is_shipped, load_profile, variant_key
from brimful.cost.programs import (
    WITH_LIGER,
    adapted_of,
    kernels_of,
    program_of,
    untraced_attention,
)
from brimful.cost.sending import sending_of, traces_base
from brimful.errors import UnknownMemoryError, UnsupportedError
from brimful.hardware.cluster import Device
from brimful.models.config import default_task, has_layout
from brimful.models.spec import MODULE
from brimful.techniques.parallel.stages import Schedule
from brimful.values.job import PREFERENCE, QAT, Job, Task
from brimful.values.strategy import (
    Strategy,
    gathers_alone,
    is_flat,
    num_micro_batches,
    recompute_of,
    what_is_away,
)

OWN_TASKS: dict[Task, frozenset[Task]] = {
    "causal-lm": SHIPPED_TASKS,
    "sequence-classification": frozenset({"sequence-classification", "masked-lm"}),
    "seq2seq": frozenset({"seq2seq"}),
}
"""Tasks of which a profile of one's own is traced, by what a model is for."""
PREDICTED_SCHEDULES: frozenset[Schedule] = frozenset({"1f1b", "gpipe", "interleaved"})
"""Orders of work that keep a backward whole; what lives between its halves was not derived."""


def missing_formula(job: Job, strategy: Strategy, device: Device) -> str:
    """Say in one sentence why no formula covers a job, and what covers it; empty where one does.

    ``strategy``: how; only its attention, its kind of checkpointing, ``zero``, ``tp`` and how its
    pipeline works matter. ``device``: on what; only whose kernels it has matters.
    """
    if strategy.engine != "torch":
        return missing_engine(job, strategy) or missing_formula(*alone_of(job, strategy), device)
    if what := _untraced_switch(job, strategy):
        return (
            f"{what} has no formula to predict from in this version; brimful plan and brimful "
            f"simulate trace it instead"
        )
    if strategy.pp > 1:
        if reason := _missing_row(job, strategy):
            return reason
        job = traced_job(job, strategy)
    if strategy.ep > 1 and (reason := missing_parted(strategy)):
        return reason
    if reason := missing_reference(job, strategy.attention, strategy.reference, device):
        return reason
    reason = _unforeseen(job, strategy, device)
    return "" if reason and _is_traced_here(job, strategy, device) else reason


def is_traceable(job: Job, strategy: Strategy, device: Device) -> bool:
    """Whether a profile of a job's own may be traced where no shipped one covers it."""
    if strategy.engine != "torch":
        return is_traceable(*alone_of(job, strategy), device)
    kernels, job = kernels_of(device, strategy.fused_kernels), traced_job(job, strategy)
    return (
        not _untraced_switch(job, strategy)
        and strategy.tp == 1
        and (strategy.ep == 1 or not missing_parted(strategy))
        and (strategy.pp == 1 or not _missing_row(job, strategy))
        and job.task in OWN_TASKS.get(default_task(job.model), ())
        and job.model.model_type != MODULE
        and (job.adapter is None or adapted_of(job) is not None)
        and not missing_reference(job, strategy.attention, strategy.reference, device)
        and not _untraced(job)
        and (strategy.fused_kernels != "liger" or _is_fused_predicted(job, strategy, device))
        and (
            is_away_traced(job, strategy)
            or not is_foreseen(
                job, strategy.attention, kernels, family_of(job, strategy).recompute, ep=strategy.ep
            )
        )
    )


def _is_fused_predicted(job: Job, strategy: Strategy, device: Device) -> bool:
    """Whether formulas hold with fused kernels, on this chip.

    Of Gemma 3 by LoRA, whose blocks are of several kinds, they were 4 % too low; full training was
    not, nor LoRA where all blocks are alike.
    """
    kernels = kernels_of(device, strategy.fused_kernels)
    is_mixed = job.adapter is not None and has_several_kinds(job, strategy.attention, kernels)
    return device.capability in WITH_LIGER and not is_mixed


def untraced(job: Job, strategy: Strategy, device: Device, needs: Iterable[Need]) -> list[Need]:
    """List what of some needs has to be traced before a job can be predicted.

    ``strategy``: how; see ``is_traceable``.
    """
    if not is_traceable(job, strategy, device):
        return []
    if strategy.engine != "torch":
        job, strategy = alone_of(job, strategy)
    traced = traced_job(job, strategy)
    kernels = kernels_of(device, strategy.fused_kernels)
    return missing_needs(traced, strategy.attention, kernels, needs)


def _is_traced_here(job: Job, strategy: Strategy, device: Device) -> bool:
    """Whether a profile of a job's own was traced on this machine, this variant of it among it."""
    kernels = kernels_of(device, strategy.fused_kernels)
    if not is_traceable(job, strategy, device) or missing_needs(
        traced_job(job, strategy), strategy.attention, kernels, needed(job, strategy)
    ):
        return False
    if strategy.pp > 1:
        return True
    family = family_of(job, strategy)
    program = chosen_program(
        job, strategy.attention, kernels, family.recompute,
        gathers=family.gathers, ep=family.ep, is_one=runs_one(job, family),
        sending=sending_of(job, family),
    )  # fmt: skip
    if not has_profile(program.key):
        return False
    key = variant_key(family.body, num_chunks=family_chunks(job, family))
    return key in load_profile(program.key).variants


def _unforeseen(job: Job, strategy: Strategy, device: Device) -> str:
    """Say why no shipped profile covers a job; empty where one does."""
    shipped = shipped_settings(job, strategy.attention)
    again = strategy.activation_checkpointing
    shipped[f"activation_checkpointing={again}"] = recompute_of(strategy) in SHIPPED_AGAIN
    shipped[f"fused_kernels={strategy.fused_kernels}"] = strategy.fused_kernels != "liger"
    shipped[f"offload={strategy.offload}"] = not is_away_traced(job, strategy)
    missing = [name for name, is_in in shipped.items() if not is_in] + _untraced(job)
    if missing:
        return (
            f"{' and '.join(missing)} has no formula to predict from; brimful plan and brimful "
            f"simulate trace it instead"
        )
    unlike = untraced_attention(
        job.model, job.precision, strategy.attention, kernels_of(device), tp=strategy.tp
    )
    return unlike or _unshipped(job, strategy, device)


def _untraced(job: Job) -> list[str]:
    """List the settings that no trace was made with.

    Layers that round as they train keep their scales from one micro-batch to the next.
    """
    traced = {
        f"method={job.method}": job.method != QAT,
        f"keep_fp32={','.join(job.keep_fp32)}": not job.keep_fp32,
        f"router_aux_loss={job.router_aux_loss}": not job.router_aux_loss,
        f"router_z_loss={job.router_z_loss}": not job.router_z_loss,
    }
    return [setting for setting, is_traced in traced.items() if not is_traced]


def told_short(reason: str) -> str:
    """Say what ``missing_formula`` says without what to do about it."""
    what, is_named, _ = reason.partition(" has no formula")
    return f"no formula covers {what}" if is_named else reason.partition(";")[0]


def told_beside(reason: str) -> str:
    """Say what ``missing_formula`` says of a run beside one whose program was traced here.

    ``reason``: of that run; how to have it traced is no news in the verb that does.
    """
    return "not traced here" if reason.endswith("trace it instead") else reason


def _is_away_predicted(job: Job, strategy: Strategy) -> bool:
    """Whether events were derived for what is kept on the host.

    That is the optimizer, the parameters of all blocks where they train and of any where they do
    not, and what blocks keep.
    """
    away = what_is_away(job, strategy)
    if away.activations and away.parameters and not away.frozen:
        return False
    if away.frozen:
        return job.task != PREFERENCE and has_layout(job.model)
    return not away.parameters or (
        away.parameters == job.model.num_layers
        and job.method == "full"
        and strategy.accumulate != "hold"
        and not away.states
        and away.optimizer
    )


def is_away_traced(job: Job, strategy: Strategy) -> bool:
    """Whether what is on the host makes another program, with every number of checkpoints."""
    away = what_is_away(job, strategy)
    return away.activations > 0 or traces_base(job, away)


def _untraced_switch(job: Job, strategy: Strategy) -> str:
    """Name a switch that no formula was traced with; empty where there is none."""
    asked = {
        f"offload={strategy.offload}": not _is_away_predicted(job, strategy),
        "optimizer_in_backward=True": strategy.optimizer_in_backward,
        f"compile={strategy.compile}": strategy.compile != "none",
        f"method={job.method} with fsdp=1": is_flat(strategy) and job.adapter is not None,
        # torch leaves out the buffers of a gather there, and of a reduction
        f"zero={strategy.zero} on one device": gathers_alone(strategy),
    }
    return next((what for what, is_asked in asked.items() if is_asked), "")


def missing_parted(strategy: Strategy) -> str:
    """Say why no formula covers parted experts; empty where those of their blocks do."""
    if strategy.tp > 1:
        return (
            f"ep={strategy.ep} with tp={strategy.tp} has no formula to predict from; "
            f"brimful simulate traces it, for balanced routing and for the worst"
        )
    return ""


def _missing_row(job: Job, strategy: Strategy) -> str:
    """Say why no formula covers a pipeline; empty where those of its blocks do."""
    num = num_micro_batches(job, strategy)
    covered = {
        f"pp_schedule={strategy.pp_schedule}": strategy.pp_schedule in PREDICTED_SCHEDULES,
        f"{num} micro-batch": num > 1,
    }
    if missing := [setting for setting, is_covered in covered.items() if not is_covered]:
        return (
            f"pp={strategy.pp} with {' and '.join(missing)} has no formula to predict from; "
            f"brimful simulate traces it, device by device of the row"
        )
    return ""


def _unshipped(job: Job, strategy: Strategy, device: Device) -> str:
    family = family_of(job, strategy)
    recompute, gathers, tp, ep = family.recompute, family.gathers, family.tp, family.ep
    program = program_of(
        job, strategy.attention, kernels_of(device), recompute, gathers=gathers, tp=tp, ep=ep
    )
    if is_shipped(program.key):
        return ""
    checkpointing, cut = strategy.activation_checkpointing, f"tp={tp}, " if tp > 1 else ""
    return (
        f"{job.model.name} with {cut}method={job.method}, attention={strategy.attention} and "
        f"activation_checkpointing={checkpointing} on {device.kernels} has no formula to predict "
        f"from (no profile {program.key}); brimful plan and brimful simulate trace it instead"
    )


def check_formula(job: Job, strategy: Strategy, device: Device) -> None:
    """Refuse a job that no formula covers."""
    reason = missing_formula(job, strategy, device)
    if reason:
        if strategy.engine != "torch":
            raise UnknownMemoryError(reason, nearest={"engine": "torch"})
        raise UnsupportedError(reason)
