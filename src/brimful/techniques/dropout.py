"""Dropout as a model's own configuration has it: when it is on, and what it does not go with."""

from brimful.errors import UnsupportedError
from brimful.models.dropout import SKIPS_BLOCKS, dropout_of
from brimful.values.job import MODULE, PREFERENCE, Job
from brimful.values.strategy import Attention, Strategy

OF_MODEL = "model"
"""What a job says that drops as its model's configuration does."""
UNDROPPED: tuple[Attention, ...] = ("flex", "varlen")
"""Kernels of attention that were not compared with dropout, or have none."""


def rates(job: Job) -> dict[str, float]:
    """Return the probabilities of the configuration that are above 0, by its fields."""
    return dropout_of(job.model, classifies=job.task == "sequence-classification")


def drops(job: Job) -> bool:
    """Whether anything is dropped; of a module of one's own its layers say, which nobody reads."""
    return job.dropout == OF_MODEL and (job.task == MODULE or bool(rates(job)))


def rates_words(job: Job) -> str:
    """Write the different probabilities that there are; a module of one's own has its own."""
    return " and ".join(f"{rate:g}" for rate in sorted({*rates(job).values()})) or "of its layers"


def dropout_words(job: Job) -> str:
    """Say whether a job drops, and how much."""
    return rates_words(job) if drops(job) else "off"


def check_undropped(job: Job) -> None:
    """Refuse to examine a step whose masks another recipe would not draw."""
    if drops(job):
        raise UnsupportedError(
            f"dropout={job.dropout} is not examined by this version, as other recipes draw other "
            f"masks; use dropout=off",
            nearest={"dropout": "off"},
        )


def check_dropout(job: Job, strategy: Strategy) -> None:
    """Refuse dropout beside what would draw wrong masks, or was not compared with it.

    Where a matrix is cut, masks must be alike for whole activations and differ for their parts.
    """
    if not drops(job):
        return
    skipped = next((field for field in rates(job) if SKIPS_BLOCKS in field), None)
    refused: dict[str, tuple[bool, str, dict[str, object]]] = {
        f"{skipped} above 0": (
            skipped is not None,
            "which leaves whole blocks out by chance",
            {"dropout": "off"},
        ),
        f"task={job.task}": (
            job.task == PREFERENCE,
            "whose reference must not drop; TRL switches it off too",
            {"dropout": "off"},
        ),
        f"tp={strategy.tp}": (
            strategy.tp > 1,
            "whose devices must draw alike for whole activations and apart for parts",
            {"tp": 1},
        ),
        f"attention={strategy.attention}": (
            strategy.attention in UNDROPPED, "which was not compared", {"attention": "sdpa"}
        ),
        **{
            f"{name}={getattr(strategy, name)}": (
                getattr(strategy, name) > 1, "which was not compared", {name: 1}
            )
            for name in ("pp", "ep")
        },
    }  # fmt: skip
    for what, (is_asked, why, nearest) in refused.items():
        if is_asked:
            (field, value), *_ = nearest.items()
            raise UnsupportedError(
                f"dropout={job.dropout} with {what} is not run by this version, {why}; use "
                f"{field}={value}",
                nearest=nearest,
            )
