"""What of a program of a job's own has to be traced before a strategy can be predicted.

The stages of a pipeline are cut from profiles of the whole model (``stage_runs.py``), whose ends
are two weights there: so that is the job that is traced, in every body that a stage has.
"""

from brimful.cost.family import body_of, family_of
from brimful.cost.own_programs import Need, needs_of, traced_chunks
from brimful.cost.stage_site import stages_of
from brimful.cost.trained import untied_job
from brimful.values.job import Job
from brimful.values.strategy import Strategy


def traced_job(job: Job, strategy: Strategy) -> Job:
    """Return the job by whose programs a strategy is predicted: of a pipeline without a tie."""
    return untied_job(job) if strategy.pp > 1 else job


def needed(job: Job, strategy: Strategy) -> list[Need]:
    """List the variants of ``traced_job`` that a strategy needs."""
    if strategy.pp == 1:
        return needs_of(job, strategy)
    return sorted({*_of_stages(job, strategy), *needs_of(job, strategy)})


def _of_stages(job: Job, strategy: Strategy) -> set[Need]:
    """Return those of every stage; the loss is cut in the last one only."""
    family = family_of(job, strategy)
    tokens = strategy.micro_batch * job.rows_per_sample * job.seq_len
    num_chunks = traced_chunks(-(-tokens // -(-tokens // strategy.loss_chunks)))
    return {
        Need(
            family.gathers,
            family.recompute if stage.num_checkpointed else "full",
            body_of(stage.num_checkpointed, stage.num_blocks),
            num_chunks if stage.ends.is_last else 1,
            ep=family.ep,
        )
        for stages in stages_of(job, strategy)
        for stage in stages
    }
