"""A batch script for Slurm: one ``torchrun`` agent on every node.

A job that is requeued keeps its number, by which the run's folder knows it: it goes on from its
newest checkpoint. SIGTERM, which precedes a preemption, ends a run after the step in progress,
with a checkpoint.

Source: https://slurm.schedmd.com/sbatch.html, https://docs.pytorch.org/docs/stable/elastic/run.html
"""

import re
from functools import partial

from brimful.export.given import Exported, Given, header
from brimful.export.torchrun import environment, program, workers
from brimful.text.escaping import shell_words
from brimful.values.plan import Plan

_UNPLAIN = re.compile(r"[^A-Za-z0-9_.-]+")


def script(plan: Plan, given: Given) -> Exported:
    """Return the script."""
    name = _UNPLAIN.sub("-", f"brimful-{plan.job.model.name}")
    lines = [
        "#!/bin/bash",
        *header(plan, given, "slurm"),
        "# the plan, --data and --out must be where all nodes can read them",
        f"#SBATCH --job-name={name}",
        *_asked(plan),
        "",
        "set -euo pipefail",
        'mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "head_node=${nodes[0]}",
        "port=$((29500 + SLURM_JOB_ID % 1000))",
        shell_words(["srun", *environment(plan), "torchrun"])
        + ' --nnodes "$SLURM_JOB_NUM_NODES" --rdzv-id "$SLURM_JOB_ID" \\',
        '    --rdzv-backend c10d --rdzv-endpoint "$head_node:$port" \\',
        f"    {shell_words(workers(plan))} \\",
        f"    {shell_words(program(given))}",
        "",
    ]  # fmt: skip
    return Exported(partial("\n".join, lines))


def _asked(plan: Plan) -> list[str]:
    cluster = plan.cluster
    asked = {"nodes": cluster.num_nodes, "ntasks-per-node": 1}
    if cluster.device.kernels == "cuda":
        asked["gpus-per-node"] = cluster.devices_per_node
    switches = ("exclusive", "requeue")
    return [
        *(f"#SBATCH --{name}={value}" for name, value in asked.items()),
        *(f"#SBATCH --{switch}" for switch in switches),
        "#SBATCH --open-mode=append",
    ]
