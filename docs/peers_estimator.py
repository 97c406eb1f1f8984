"""The part of docs/peers.md that lays our estimator beside other calculators, and its picture."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple, cast

from peers_words import folded, made, result_of, share, table  # first: it says where the rest is

# isort: split
from peer_asks import LLM_DEFAULT, LLM_TUNED, PEERS
from peer_rows import EstimatorRow
from peer_scores import Duel, duel, figure_of, score, speed_of

from brimful.show.marks import BAR, INK, MARK, line, picture, words

_ESTIMATOR = """## The estimator beside other calculators

Peers that are programs are called, in an environment of their own: llm-analysis, `accelerate
estimate-memory`, DeepSpeed's `estimate_zero2/3_model_states_mem_needs`. The others are formulas of
a paper or a script, written down with their source in `benchmarks/peers/peer_formulas.py`.

How a run is told to a peer was fixed before any was asked (`peer_asks.py`):

- Everything that a peer has a switch for is told to it. A row that it has none for, where that
  changes what is held, is no row of its score; reasons are counted below.
- **llm-analysis** is told what its own reader takes from a Hugging Face configuration, degrees,
  batch, ZeRO and recomputation. *Tuned*: also the width of the MLP (a gated one as 3/2), the bytes
  of weights, gradients and optimizer of the recipe, types of norms, fused attention, and half the
  data sheet's FLOP/s, as its own source says of Megatron-LM.
- **accelerate** is given the whole model's bytes and the type, for one device. **DeepSpeed** the
  parameters and devices, for mixed precision.
- **EleutherAI's calculator** is told gates, key heads, ZeRO and checkpointing; fused attention has
  no switch there. **16 B + Korthikanti** takes fused attention as attention that is recomputed.
  **held x 1.5** takes what is held in the run's own recipe, which is kinder than 16 B a parameter.
- After a first look three of these rules were made kinder to peers, none to ours: EleutherAI's
  calculator was told of the bytes of gradients and values and that selective checkpointing is
  checkpointing, and fp32 runs were taken out for those whose activations have 16 bits only.
- A figure of live tensors is compared where one was published; else reserved bytes, else those of
  the process. Of our bands for these, which half of the sources may have set, the middle is taken.
- Runs are those that Brimful carries (`brimful validate`) and those measured here on a CPU. Our
  formulas for live bytes were traced, not fitted to either; nothing was changed for this page.

Errors are relative to what was measured: median, 90th percentile and worst of their sizes; *bias*
is the median of the signed ones; *10 %* is the share of rows within that. *Nearer* counts the rows
on which ours is nearer to the truth. *No* counts runs that ran and that a tool says do not fit.
"""
FITTED = "llm-foundry"
"""The family of published runs that our efficiencies were fitted to."""
_OTHERS = (
    "Unsloth and xtuner are left out: we found no source that states a formula for bytes of a run."
)


class Group(NamedTuple):
    """Rows that one table is of."""

    title: str
    rows: list[EstimatorRow]


def _groups(rows: Sequence[EstimatorRow]) -> Iterator[Group]:
    out = [row for row in rows if row.source == "published"]
    live = [row for row in out if row.memory == "live"]
    yield Group("Published peaks of live tensors", live)
    plain = [row for row in live if not row.unlike]
    yield Group("Of these, programs of which nothing is left out", plain)
    yield Group("Published reserved bytes", [row for row in out if row.memory == "reserved"])
    yield Group("Published bytes of the process", [r for r in out if r.memory == "process"])
    yield Group("Peaks of live tensors measured here on a CPU", _own(rows))


def _own(rows: Sequence[EstimatorRow]) -> list[EstimatorRow]:
    return [row for row in rows if row.source == "own"]


def estimator(picture_name: str) -> Iterator[str]:
    """Yield the section.

    Args:
        picture_name: Of the chart, beside the page.
    """
    result = result_of("estimator")
    rows = cast("tuple[EstimatorRow, ...]", result.rows)
    yield _ESTIMATOR
    yield folded(_OTHERS)
    yield ""
    yield f"![Median error of every peer, ours on the same rows beside it]({picture_name})"
    yield ""
    for group in _groups(rows):
        yield f"### {group.title}"
        yield ""
        yield from _group(group)
    yield from _behind(rows)
    yield from _shared(rows)
    yield from _nearer(rows)
    yield from _speeds(rows)
    yield from _refusals(rows)
    yield "### What an answer costs"
    yield ""
    yield "Imports and processes apart, one core:"
    yield ""
    yield from (f"- {note}" for note in result.notes)
    yield ""
    yield made(result)
    yield ""


def _group(group: Group) -> Iterator[str]:
    """Say how many rows there are, then a line per peer with ours on its rows."""
    ours = [row for row in group.rows if row.predicted_bytes is not None]
    stands_in = [row for row in group.rows if row.predicted_bytes is None and row.simulated_bytes]
    yield folded(
        f"{len(group.rows)} runs; our formulas cover {len(ours)} of them. Of the others "
        f"{len(stands_in)} were simulated: {_simulated(stands_in)}."
    )
    yield ""
    duels = [(peer, found) for peer in PEERS if (found := duel(group.rows, peer))]
    if duels:
        yield table(_DUEL_HEAD, [_duel_cells(peer, found) for peer, found in duels])
        yield ""
    alone = [_alone(group.rows, peer) for peer in PEERS]
    said = [text for text in alone if text]
    if said:
        yield folded(
            f"On all rows that a peer can express, also where ours cannot: {'; '.join(said)}."
        )
        yield ""


_DUEL_HEAD = [
    "peer", "rows", "median", "bias", "p90", "worst", "10 %", "no", "ours: median", "p90", "worst",
    "10 %", "no", "nearer",
]  # fmt: skip


def _behind(rows: Sequence[EstimatorRow]) -> Iterator[str]:
    """Say where a peer is ahead of ours on the rows of both, by any of three figures."""
    yield "### Who is ahead"
    yield ""
    ahead, number = [], 0
    for group, peer in product(_groups(rows), PEERS):
        found = duel(group.rows, peer)
        number += found is not None
        ahead += [] if found is None else list(_ahead(group, peer, found))
    told = f"In {number} comparisons above ours is ahead by median, 90th percentile and worst error"
    yield folded(f"{told}, in all but these:" if ahead else f"{told}.")
    yield ""
    yield from ahead
    yield ""


def _ahead(group: Group, peer: str, found: Duel) -> Iterator[str]:
    theirs, ours = found.theirs, found.ours
    pairs = {
        "median": (theirs.median, ours.median),
        "p90": (theirs.p90, ours.p90),
        "worst": (abs(theirs.worst), abs(ours.worst)),
    }
    for name, (their, our) in pairs.items():
        if their <= our:
            yield (
                f"- {group.title}, {peer}: {name} {share(their)}, ours {share(our)} "
                f"({theirs.num_rows} rows; our worst: {', '.join(found.our_worst.unlike)})"
            )


def _duel_cells(peer: str, found: Duel) -> list[str]:
    theirs, ours = found.theirs, found.ours
    return [
        peer, str(theirs.num_rows), share(theirs.median), f"{theirs.bias:+.1%}",
        share(theirs.p90), f"{theirs.worst:+.0%}", f"{theirs.near:.0%}", str(found.num_said_no),
        share(ours.median), share(ours.p90), f"{ours.worst:+.1%}", f"{ours.near:.0%}",
        str(found.num_ours_said_no), f"{found.num_nearer} of {theirs.num_rows}",
    ]  # fmt: skip


def _simulated(rows: Sequence[EstimatorRow]) -> str:
    found = score((row.simulated_bytes, row.measured_bytes) for row in rows)
    if found is None:
        return "none"
    return f"median error {share(found.median)}, p90 {share(found.p90)}, which is in no column"


def _alone(rows: Sequence[EstimatorRow], peer: str) -> str:
    """Say how a peer does on rows beyond those of the table; empty where there are none."""
    every = [row for row in rows if figure_of(row, peer) is not None]
    more = [row for row in every if row.predicted_bytes is None]
    found = score((figure_of(row, peer), row.measured_bytes) for row in every)
    if not more or found is None:
        return ""
    return f"{peer} {found.num_rows} rows, median {share(found.median)}"


def _shared(rows: Sequence[EstimatorRow]) -> Iterator[str]:
    """Yield the table of the rows that all can express."""
    every = [
        row
        for row in rows
        if row.measured_bytes
        and row.predicted_bytes is not None
        and all(figure_of(row, peer) is not None for peer in PEERS)
    ]
    yield "### Rows that every peer can express"
    yield ""
    sources = Counter(row.source for row in every)
    yield folded(
        f"{len(every)} rows ({', '.join(f'{n} {name}' for name, n in sources.items())}): full "
        f"training with AdamW in 16-bit mixed precision on one device."
    )
    yield ""
    lines = []
    for peer in ("", *PEERS):
        found = score((figure_of(row, peer), row.measured_bytes) for row in every)
        if found:
            lines.append(
                [peer or "**Brimful**", share(found.median), f"{found.bias:+.1%}",
                 share(found.p90), f"{found.worst:+.1%}", f"{found.near:.0%}"]
            )  # fmt: skip
    yield table(["", "median", "bias", "p90", "worst", "10 %"], lines)
    yield ""


def _nearer(rows: Sequence[EstimatorRow]) -> Iterator[str]:
    """Say on which rows a peer is nearer than ours, and what is special about them."""
    pairs = [
        (peer, row)
        for peer in PEERS
        if (found := duel([r for r in rows if r.measured_bytes], peer))
        for row in found.nearer
    ]
    yield "### Where a peer is nearer"
    yield ""
    runs = {row.id: row for _, row in pairs}
    yield folded(
        f"On {len(runs)} runs at least one of {len(PEERS)} peers is nearer to the truth than ours, "
        f"{len(pairs)} times in all. What these runs' programs have that no switch of ours, and of "
        f"no peer, expresses:"
    )
    yield ""
    counts = Counter(
        row.unlike[0] if row.unlike else f"nothing; {row.memory} bytes" for row in runs.values()
    )
    lines = [[what, str(number), _who(what, pairs)] for what, number in counts.most_common()]
    yield table(["what", "runs", "nearer there"], lines)
    yield ""
    yield folded(
        "Fused kernels of others and Thunder keep less for backward than eager PyTorch, which is "
        "what is predicted; samples that are shorter than the sequence length take less than it; a "
        "run of a compiled program takes less or more. Of reserved bytes we say a band, whose "
        "middle is compared here: the truth lies below it or above."
    )
    yield ""


def _who(what: str, pairs: Sequence[tuple[str, EstimatorRow]]) -> str:
    names = Counter(
        peer
        for peer, row in pairs
        if (row.unlike[0] if row.unlike else f"nothing; {row.memory} bytes") == what
    )
    return ", ".join(f"{peer} {number}" for peer, number in names.most_common())


def _speeds(rows: Sequence[EstimatorRow]) -> Iterator[str]:
    yield "### Tokens per second"
    yield ""
    yield folded(
        "Of the peers only llm-analysis predicts one. Published speeds of full training on GPUs "
        "that it knows, one device's. Our efficiencies of Ampere and Hopper were fitted to 62 runs "
        "of llm-foundry; the others were looked at when they were chosen: no row is new to ours."
    )
    yield ""
    lines = []
    for is_fitted, peer in product((True, False), (LLM_DEFAULT, LLM_TUNED)):
        both = [
            row
            for row in rows
            if speed_of(row, peer)
            and row.predicted_tokens_per_s
            and (row.family == FITTED) == is_fitted
        ]
        theirs = score((speed_of(row, peer), row.measured_tokens_per_s) for row in both)
        ours = score((row.predicted_tokens_per_s, row.measured_tokens_per_s) for row in both)
        if theirs and ours:
            where = FITTED if is_fitted else "others"
            lines.append(
                [where, peer, str(theirs.num_rows), share(theirs.median), f"{theirs.bias:+.1%}",
                 share(theirs.p90), share(ours.median), f"{ours.bias:+.1%}", share(ours.p90)]
            )  # fmt: skip
    head = ["runs", "peer", "rows", "median", "bias", "p90", "ours: median", "bias", "p90"]
    yield table(head, lines)
    yield ""


def _refusals(rows: Sequence[EstimatorRow]) -> Iterator[str]:
    yield "### What could not be expressed"
    yield ""
    measured = [row for row in rows if row.measured_bytes]
    lines = [
        [
            "Brimful's formulas",
            str(sum(r.predicted_bytes is None for r in measured)),
            _ours(measured),
        ]
    ]
    for peer in PEERS:
        reasons = Counter(
            answer.reason for row in measured for answer in row.answers
            if answer.peer == peer and answer.peer_bytes is None
        )  # fmt: skip
        lines.append([peer, str(sum(reasons.values())), _counted(reasons)])
    yield folded(f"Of {len(measured)} runs with a measured figure of memory:")
    yield ""
    yield table(["", "rows", "why"], lines)
    yield ""


def _ours(rows: Sequence[EstimatorRow]) -> str:
    reasons = Counter(row.reason or "no band" for row in rows if row.predicted_bytes is None)
    return _counted(reasons)


def _counted(reasons: Counter[str]) -> str:
    most = reasons.most_common(4)
    rest = sum(reasons.values()) - sum(number for _, number in most)
    told = "; ".join(f"{_plain(reason)} {number}" for reason, number in most)
    return f"{told}; others {rest}" if rest else told


def _plain(reason: str) -> str:
    return reason.replace("|", "/").partition("\n")[0][:70]


_NAMES, _LEFT, _STEP, _TOP, _FULL = 8, 210, 34, 62, 460
_MOST = 1.0
"""Errors beyond this are drawn at the edge, with their figure."""


def chart() -> str:
    """Draw the median error of every peer on published peaks, and ours on the same rows."""
    rows = cast("tuple[EstimatorRow, ...]", result_of("estimator").rows)
    live = [row for row in rows if row.memory == "live" and row.source == "published"]
    duels = [(peer, found) for peer in PEERS if (found := duel(live, peer))]
    parts = [
        words(_NAMES, 22, "Median error of published peaks of live tensors (rows)"),
        words(_LEFT, 44, "peer", size=11, ink=MARK),
        words(_LEFT + 50, 44, "Brimful on the same rows", size=11, ink=BAR),
        line(_LEFT, _TOP - 8, _LEFT, _TOP + _STEP * len(duels), INK),
    ]
    for place, (peer, found) in enumerate(duels):
        y = _TOP + _STEP * place
        parts.append(words(_NAMES, y + 15, f"{peer} ({found.theirs.num_rows})"))
        parts += _bar(y, found.theirs.median, MARK) + _bar(y + 13, found.ours.median, BAR)
    return picture(_LEFT + _FULL + 90, _TOP + _STEP * len(duels) + 16, parts)


def _bar(y: float, error: float, ink: str) -> list[str]:
    wide = max(1.0, _FULL * min(error, _MOST) / _MOST)
    mark = f'<rect x="{_LEFT}" y="{y:.1f}" width="{wide:.1f}" height="10" fill="{ink}"/>'
    return [mark, words(_LEFT + wide + 6, y + 9, share(error), size=10)]
