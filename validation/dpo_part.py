"""Our DPO beside TRL's: one loss and its gradients, over the same pairs, wherever the reference is.

TRL is installed in a folder of its own, beside the torch and transformers that are here. Its own
trainer reads the same JSONL with the same tokenizer, so that prompts and their masks are compared
as well.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from cases import Case
from dpo_pairs import BETA, Loss, cases, key_of, our_loss, write_data
from dpo_rows import DpoRow
from evidence import Summary, describe_case, relative, spread_of

VERSION = "1.16.0"
SITE = "BRIMFUL_TRL_SITE"
"""A variable that may name a folder which has it already."""
LOSS_BAR = 1e-6
NORM_BAR = 1e-5
"""Sums of squares over other orders of products."""
_AOT = (
    "its sigmoid ignores label_smoothing; smoothed pairs are compared with its aot, one at a time, "
    "which is conservative DPO"
)
_WORKER = Path(__file__).parent / "dpo_worker.py"
_TIMEOUT_S = 900.0


def run(*, seed: int, quick: bool) -> tuple[list[DpoRow], Summary]:
    """Compute every loss by both; nothing is drawn."""
    del seed
    chosen = cases(quick=quick)
    with trl_site() as site, tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_data(folder)
        theirs = _their_losses(chosen, folder, site)
        rows = [_row(case, our_loss(case, folder), theirs[key_of(case)]) for case in chosen]
    return rows, summarize(rows)


@contextlib.contextmanager
def trl_site() -> Iterator[str]:
    """Yield a folder that TRL can be imported from.

    Raises:
        subprocess.CalledProcessError: It cannot be installed; pip says why.
    """
    if SITE in os.environ:
        yield os.environ[SITE]
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
        subprocess.run([*command, f"trl=={VERSION}"], check=True)  # noqa: S603 - fixed
        yield folder


def _their_losses(chosen: Sequence[Case], folder: Path, site: str) -> dict[bytes, Loss]:
    """Ask TRL once for each job: where our reference is, it does not know."""
    differing = {key_of(case): case for case in chosen}
    asked = folder / "ask.json"
    asked.write_bytes(msgspec.json.encode(list(differing.values())))
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), site)))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    environment["HF_DATASETS_CACHE"] = str(folder / "datasets")
    subprocess.run(  # noqa: S603 - our own file
        [sys.executable, str(_WORKER), str(asked), str(folder)],
        check=True,
        env=environment,
        timeout=_TIMEOUT_S,
    )
    told = msgspec.json.decode((folder / "trl.json").read_bytes(), type=list[Loss])
    return dict(zip(differing, told, strict=True))


def _row(case: Case, ours: Loss, theirs: Loss) -> DpoRow:
    return DpoRow(
        case=case,
        trl_version=VERSION,
        trl_loss=theirs.loss,
        trl_norm=theirs.norm,
        loss=ours.loss,
        norm=ours.norm,
        loss_error=relative(ours.loss, theirs.loss),
        norm_error=relative(ours.norm, theirs.norm),
    )


def summarize(rows: list[DpoRow]) -> Summary:
    """Sum up, and say which cases miss a bar."""
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(
            spread_of("loss", [row.loss_error for row in rows]),
            spread_of("grad norm", [row.norm_error for row in rows]),
        ),
        bars=(
            f"the loss within {LOSS_BAR:g} of TRL's, relative, at label smoothing 0 and 0.1",
            f"the norm of its gradients within {NORM_BAR:g}",
        ),
        missed=tuple(f"{text}: {_describe(row)}" for row in rows for text in _misses(row)),
        findings=(
            f"by TRL {', '.join(sorted({row.trl_version for row in rows}))}, beta {BETA:g}",
            _AOT,
        ),
    )


def _misses(row: DpoRow) -> Iterator[str]:
    if not abs(row.loss_error) <= LOSS_BAR:
        yield f"loss {row.loss_error:+.1e}"
    if not abs(row.norm_error) <= NORM_BAR:
        yield f"norm {row.norm_error:+.1e}"


def _describe(row: DpoRow) -> str:
    preference = row.case.job.preference
    assert preference is not None
    return (
        f"{describe_case(row.case)} reference {row.case.strategy.reference} smoothing "
        f"{preference.label_smoothing:g}"
    )
