"""A published run beside its prediction, as one row that scores and evidence are made of."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from brimful.published.express import Unexpressed, express
from brimful.published.predict import predict
from brimful.published.programs import other_program
from brimful.published.replayed import replayed
from brimful.published.rows import PublishedRun, is_traced
from brimful.units import GIB
from brimful.values.plan import Band, Word


class Compared(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A published run and what is predicted of it; sizes in GiB, of one device.

    Attributes:
        id: Its name.
        family: The collection it comes from.
        label: Whose program ran, with the first thing of it that no switch expresses.
        has_bar: Whether its own program is what is predicted.
        source: Where it was published.
        sweep: What it has in common with runs that differ in strategy only.
        reason: Why there is no prediction; empty where there is one.
        published_allocated_gib: Peak of live tensors; blocks that streams still use count as such.
        predicted_allocated_gib: The same.
        published_reserved_gib: Peak of the allocator's segments.
        predicted_reserved_gib: Band for it, where the program was traced.
        published_process_gib: Peak of the process.
        likely_reserved_gib: What it most likely is, of any program; None where it was not replayed.
        predicted_process_gib: Band for it.
        likely_process_gib: Where in that band it most likely is; None where it was not replayed.
        published_tokens_per_s: Of one device.
        predicted_tokens_per_s: The same.
        word: Whether it was predicted to hold, of a run that did: fits, tight or no; empty where
            that was not asked, or its sequence is not known.
        is_fitted: Whether figures like these chose a rule that it rests on: in-sample.
    """

    id: str
    family: str
    label: str
    has_bar: bool
    source: str
    sweep: str
    reason: str = ""
    published_allocated_gib: float | None = None
    predicted_allocated_gib: float | None = None
    published_reserved_gib: float | None = None
    predicted_reserved_gib: Band | None = None
    likely_reserved_gib: float | None = None
    published_process_gib: float | None = None
    predicted_process_gib: Band | None = None
    likely_process_gib: float | None = None
    published_tokens_per_s: float | None = None
    predicted_tokens_per_s: float | None = None
    word: Word | Literal[""] = ""
    is_fitted: bool = False


def compare_all(runs: Iterable[PublishedRun], *, holds: bool = False) -> tuple[Compared, ...]:
    """Predict every run, in order.

    ``holds``: whether each is replayed to say whether it holds: a tenth of a second for a run.
    """
    return tuple(with_word(run, compare(run)) if holds else compare(run) for run in runs)


def with_word(run: PublishedRun, row: Compared) -> Compared:
    """Say whether a run was predicted to hold."""
    expressed = express(run)
    if row.reason or isinstance(expressed, Unexpressed):
        return row
    reserved = replayed(run, expressed, other_program(run, expressed))
    return msgspec.structs.replace(row, word=reserved.word) if reserved else row


def compare(run: PublishedRun) -> Compared:
    """Put a run beside its prediction."""
    row = Compared(
        id=run.id,
        family=run.family,
        label=label(run),
        has_bar=is_traced(run),
        source=run.source,
        sweep=_sweep(run),
        published_allocated_gib=run.allocated_gib or run.active_gib,
        published_reserved_gib=run.reserved_gib,
        published_process_gib=run.process_gib,
        published_tokens_per_s=run.tokens_per_s,
    )
    predicted = predict(run)
    if isinstance(predicted, Unexpressed):
        return msgspec.structs.replace(row, reason=predicted.reason)
    return msgspec.structs.replace(
        row,
        predicted_allocated_gib=predicted.allocated_bytes / GIB,
        predicted_reserved_gib=_in_gib(predicted.reserved_bytes),
        predicted_process_gib=_in_gib(predicted.process_bytes),
        likely_reserved_gib=_gib(predicted.likely_reserved_bytes),
        likely_process_gib=_gib(predicted.likely_process_bytes),
        predicted_tokens_per_s=predicted.tokens_per_s,
        is_fitted=predicted.is_fitted,
    )


def label(run: PublishedRun) -> str:
    """Name whose program ran, with the first thing of it that no switch expresses."""
    return ", ".join((run.implementation, *run.unlike[:1]))


def _sweep(run: PublishedRun) -> str:
    """Name what runs of one sweep have in common: all but their strategy."""
    job = (run.model, run.method, run.precision, run.seq_len)
    parts = (run.source, label(run), *job, f"{run.num_devices}x{run.gpu}")
    return " ".join(map(str, parts))


def _gib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else num_bytes / GIB


def _in_gib(band: Band | None) -> Band | None:
    return None if band is None else Band(low=band.low / GIB, high=band.high / GIB)
