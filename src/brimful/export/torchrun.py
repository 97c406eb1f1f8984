"""The line that starts a plan with ``torchrun``, on one machine or on each of several."""

from functools import partial

from brimful.export.given import Exported, Given, header
from brimful.text.escaping import shell_flag, shell_words
from brimful.values.plan import Plan

MAX_RESTARTS = 3
_HEAD = "node0:29500"
"""Where the first machine listens; for the user to replace."""


def command(plan: Plan, given: Given) -> Exported:
    """Return the line, behind comments that say what it starts."""
    cluster = plan.cluster
    alone = cluster.num_nodes == 1
    meeting = ["--standalone"] if alone else [
        "--nnodes", str(cluster.num_nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", _HEAD,
    ]  # fmt: skip
    words = [*environment(plan), "torchrun", *meeting, *workers(plan), *program(given)]
    lines = [*header(plan, given, "torchrun"), *_where(cluster.num_nodes), shell_words(words), ""]
    return Exported(partial("\n".join, lines))


def environment(plan: Plan) -> list[str]:
    """Return what every process is told of its allocator, in words of ``env``."""
    settings = plan.strategy.allocator
    return ["env", f"PYTORCH_CUDA_ALLOC_CONF={settings}"] if settings else []


def workers(plan: Plan) -> list[str]:
    """Return how many processes each machine starts, and how often they are started again."""
    each = plan.cluster.devices_per_node
    return ["--nproc-per-node", str(each), "--max-restarts", str(MAX_RESTARTS)]


def program(given: Given) -> list[str]:
    """Return what every process runs."""
    plan = f"./{given.plan}" if given.plan.startswith("-") else given.plan
    given_as = (*shell_flag("--data", given.data), *shell_flag("--out", given.out))
    return ["-m", "brimful", "train", plan, *given_as]


def _where(num_nodes: int) -> list[str]:
    if num_nodes == 1:
        return []
    return [
        f"# start it on each of {num_nodes} machines; {_HEAD} is the first one's name and a port",
        "# the plan, --data and --out must be where all of them can read them",
    ]
