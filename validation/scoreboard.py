"""Signed errors of every comparison there is, by family, and whether one became worse.

A *board* says what is compared with what; a *family* of it are runs that are alike: of one source,
one program, one architecture. Reads evidence; imports no torch.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from brimful.errors import FileFormatError, InputError
from brimful.files.writing import write_bytes
from brimful.published.compare import Compared
from brimful.published.scoreboard import group_by, p90

HERE = Path(__file__).parent
BEST = HERE / "best" / "scoreboard.json"
"""The best that every family has been, and why some are worse today."""
A_POINT = 0.01
NEAR = 0.05
_SCHEMA = "brimful.scoreboard/1"
Document = dict[str, Any]


class Said(NamedTuple):
    """One comparison.

    Attributes:
        family: What it is like.
        name: Which run.
        error: Signed, relative to the second of the two that are compared.
    """

    family: str
    name: str
    error: float


class Board(NamedTuple):
    """What is compared with what.

    Attributes:
        title: In words.
        key: In one word or two, for file names and the guard.
        says: All comparisons.
    """

    title: str
    key: str
    says: tuple[Said, ...]


class Score(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the comparisons of a family say together; errors are relative.

    Attributes:
        family: Its name.
        num_runs: How many.
        bias: Median of the signed errors.
        median: Of the absolute errors.
        p90: Of the absolute errors.
        worst: The signed error of largest size.
        worst_name: Whose that is.
        near_share: Share of runs within 5 %.
    """

    family: str
    num_runs: int
    bias: float
    median: float
    p90: float
    worst: float
    worst_name: str
    near_share: float


class Excuse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a family is worse than it has been; shown on the page.

    Attributes:
        date: Day it was written, ISO 8601.
        median: What was accepted.
        p90: What was accepted.
        why: In a sentence.
    """

    date: str
    median: float
    p90: float
    why: str


class Best(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best that a family has been, figure by figure; and what was accepted since."""

    median: float
    p90: float
    excuse: Excuse | None = None


class BestOfAll(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file: every family that there was, as ``board: family``."""

    schema: str
    families: dict[str, Best]


def boards(folder: Path = HERE) -> tuple[Board, ...]:
    """Return all boards that there is evidence for.

    Args:
        folder: Of the evidence; GPU rows are in its folder ``gpu``.
    """
    found = (
        Board("Published peaks, simulated", "published simulated",
              tuple(_published(_rows(folder, "published")))),
        Board("Published peaks, predicted", "published predicted",
              tuple(_compared(_rows(folder, "published_predicted"), "allocated_gib"))),
        Board("Published speeds, predicted", "published speed",
              tuple(_compared(_rows(folder, "published_predicted"), "tokens_per_s"))),
        *_gpu_boards(folder / "gpu"),
        Board("Real runs on a CPU, simulated", "cpu simulated", tuple(measured(folder))),
        Board("Pretend GPU, predicted", "pretend predicted",
              tuple(_formulas(_rows(folder, "predicted_vs_simulated")))),
    )  # fmt: skip
    return tuple(board for board in found if board.says)


def score(family: str, says: Sequence[Said]) -> Score:
    """Sum up one family; it has a run at least."""
    sizes = sorted(abs(one.error) for one in says)
    worst = max(says, key=lambda one: abs(one.error))
    return Score(
        family=family,
        num_runs=len(says),
        bias=statistics.median(one.error for one in says),
        median=statistics.median(sizes),
        p90=p90(sizes),
        worst=worst.error,
        worst_name=worst.name,
        near_share=sum(size <= NEAR for size in sizes) / len(sizes),
    )


def scores(board: Board) -> tuple[Score, ...]:
    """Sum up every family of a board, those with most runs first."""
    families = group_by(board.says, lambda one: one.family)
    return tuple(
        score(family, says)
        for family, says in sorted(families.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def _rows(folder: Path, name: str) -> list[Document]:
    path = folder / f"{name}.json"
    if not path.is_file():
        return []
    rows: list[Document] = msgspec.json.decode(path.read_bytes())["rows"]
    return rows


def _published(rows: Iterable[Document]) -> Iterator[Said]:
    for row in rows:
        if row["peak_error"] is not None:
            yield Said(f"{row['family']}, {row['mem_class']}", row["id"], row["peak_error"])


def _compared(rows: Iterable[Document], figure: str) -> Iterator[Said]:
    for row in rows:
        there, here = row.get(f"published_{figure}"), row.get(f"predicted_{figure}")
        if there and here:
            yield Said(_label(row["family"], row["label"]), row["id"], here / there - 1)


def _label(family: str, label: str) -> str:
    """Name a collection and whose program ran, once where they are called the same."""
    return label if label.split(",", maxsplit=1)[0] == family else f"{family}, {label}"


def compared_boards(rows: Sequence[Compared]) -> tuple[Board, ...]:
    """Return the two boards of predictions that are made now, not read.

    Args:
        rows: From ``brimful.published.compare.compare_all``.
    """
    told = [msgspec.to_builtins(row) for row in rows]
    return (
        Board("Published peaks, predicted", "published predicted",
              tuple(_compared(told, "allocated_gib"))),
        Board("Published speeds, predicted", "published speed",
              tuple(_compared(told, "tokens_per_s"))),
    )  # fmt: skip


_MEASURED = (
    ("simulated_vs_measured", "drawn jobs"),
    ("techniques", "techniques of one device"),
    ("ranks", "2 and 4 processes"),
    ("routing", "routing of experts"),
    ("offload", "offload"),
    ("pretend_examples", "scripts as they are"),
    ("compiled", "compiled programs"),
    ("watched", "watched trainers"),
)


def measured(folder: Path) -> Iterator[Said]:
    """Yield every peak of a real run on a CPU beside its simulation."""
    for file, family in _MEASURED:
        for row in _rows(folder, file):
            yield Said(family, name_of(row), row["peak_error"])


def _formulas(rows: Iterable[Document]) -> Iterator[Said]:
    for row in rows:
        family = row["case"]["job"]["model"]["model_type"]
        yield Said(str(family), name_of(row), row["peak_error"])


_GPU_ROWS = "brimful.gpu/1"
"""Schema of the harness's rows, beside which programs of others have files of their own."""
_GPU_ERRORS = (
    ("GPU, allocated, simulated", "simulated_to_allocated"),
    ("GPU, reserved, simulated", "simulated_to_reserved"),
    ("GPU, step time, predicted", "predicted_to_step_s"),
)


def _gpu_boards(folder: Path) -> Iterator[Board]:
    """Yield what the rows of ``benchmarks/gpu`` say; nothing where none are committed."""
    read = [msgspec.json.decode(path.read_bytes()) for path in sorted(folder.glob("*.json"))]
    documents = [document for document in read if document["schema"] == _GPU_ROWS]
    for title, field in _GPU_ERRORS:
        says = tuple(_gpu_says(documents, field))
        yield Board(title, title.lower(), says)


def _gpu_says(documents: Iterable[Document], field: str) -> Iterator[Said]:
    for document in documents:
        for row in document["rows"]:
            error = row["errors"].get(field)
            if error is not None:
                yield Said(str(row["case"].get("family", "all")), row["case"]["name"], error)


def name_of(row: Document) -> str:
    """Name a row of evidence: by its name, its question, or what tells its job from others."""
    for field in ("id", "name", "script"):
        if field in row:
            return str(row[field])
    if "flags" in row:
        return row["flags"] if isinstance(row["flags"], str) else " ".join(row["flags"])
    if "name" in row["case"]:
        return str(row["case"]["name"])
    job, strategy = row["case"]["job"], row["case"]["strategy"]
    words = [job["model"]["name"], job["method"], job["precision"], job["optimizer"]]
    words += [f"ac {strategy['activation_checkpointing']}", *_degrees(strategy)]
    return " ".join(map(str, words))


def _degrees(strategy: Document) -> Iterator[str]:
    for name in ("zero", "dp_shard", "dp_replicate", "tp", "pp", "ep"):
        if strategy.get(name, 1) not in {0, 1}:
            yield f"{name} {strategy[name]}"


def read_best(path: Path = BEST) -> BestOfAll:
    """Read the best there was; nothing where there is no file yet.

    Raises:
        FileFormatError: It is another file, or of another version.
    """
    if not path.is_file():
        return BestOfAll(schema=_SCHEMA, families={})
    try:
        best = msgspec.json.decode(path.read_bytes(), type=BestOfAll)
    except msgspec.DecodeError as error:
        raise FileFormatError(f"{path.name} is no scoreboard ({error}); restore it") from error
    if best.schema != _SCHEMA:
        raise FileFormatError(
            f"{path.name} has schema {best.schema!r}, not {_SCHEMA!r}; restore it"
        )
    return best


def worse(now: Iterable[Board], best: BestOfAll) -> dict[str, str]:
    """Say which families are worse than they have been, by more than a point, without a reason.

    Args:
        now: Boards; those that are left out are not judged.
        best: What was.

    Returns:
        By ``board: family``, what became of it.
    """
    found: dict[str, str] = {}
    for board in now:
        today = {f"{board.key}: {one.family}": one for one in scores(board)}
        before = {key: b for key, b in best.families.items() if key.startswith(f"{board.key}: ")}
        for key, was in before.items():
            if key not in today:
                found[key] = "has no comparison any more"
            elif told := _worse(today[key], was):
                found[key] = told
    return found


def _worse(now: Score, was: Best) -> str:
    accepted = was.excuse or was
    for name in ("median", "p90"):
        is_now, limit = getattr(now, name), max(getattr(was, name), getattr(accepted, name))
        if is_now > limit + A_POINT:
            return f"{name} {is_now:.2%}, it was {limit:.2%}"
    return ""


def kept(now: Sequence[Board], best: BestOfAll, *, why: str = "", date: str = "") -> BestOfAll:
    """Return the best there has been, today included.

    Args:
        now: All boards.
        best: What was.
        why: Why families that are worse may be; shown on the page.
        date: Of the reason.

    Raises:
        InputError: A family is worse, or gone, and no reason is given.
    """
    told = worse(now, best)
    if told and not why:
        lines = "; ".join(f"{key} {what}" for key, what in told.items())
        raise InputError(f"worse than before: {lines}; mend it, or say why with --because")
    families = {}
    for board in now:
        for one in scores(board):
            key = f"{board.key}: {one.family}"
            was = best.families.get(key, Best(median=one.median, p90=one.p90))
            families[key] = _better(one, was, _excuse(one, why, date) if key in told else None)
    return BestOfAll(schema=_SCHEMA, families=dict(sorted(families.items())))


def _excuse(now: Score, why: str, date: str) -> Excuse:
    return Excuse(date=date, median=now.median, p90=now.p90, why=why)


def _better(now: Score, was: Best, excuse: Excuse | None) -> Best:
    """Keep the lower figures; a reason goes when nothing is worse any more."""
    best = Best(median=min(now.median, was.median), p90=min(now.p90, was.p90))
    still = excuse or (was.excuse if _worse(now, best) else None)
    return msgspec.structs.replace(best, excuse=still)


def write_best(best: BestOfAll, path: Path = BEST) -> None:
    """Write the file, in lines that a diff can be read of."""
    path.parent.mkdir(exist_ok=True)
    write_bytes(path, msgspec.json.format(msgspec.json.encode(best), indent=1) + b"\n")
