"""The savings ledger as a waterfall on the page: a bar per switch, from the naive run on."""

from brimful.errors import InputError, UnsupportedError
from brimful.report.ledger import JOBS, NAIVE, cells, naive_cells
from brimful.search.ledger import LedgerRow, ledger
from brimful.show import markup
from brimful.show.markup import Html
from brimful.units import format_bytes
from brimful.values.plan import Plan

_HEADINGS = ("Switch", "Saves", "Peak", "Time", "Step", "Because")


def ledger_section(plan: Plan) -> Html | None:
    """Draw what each switch of a plan saves, and what it costs.

    Returns the waterfall and its table; None where no formula covers the job, where the plan is the
    naive run, or where this version predicts another peak than the plan was made with.
    """
    rows = _rows(plan)
    if not rows or plan.estimate is None:
        return None
    if rows[-1].peak_after_bytes != plan.estimate.predicted_peak_allocated_bytes:
        return None
    return markup.join([_waterfall(rows), _table(rows)])


def _rows(plan: Plan) -> tuple[LedgerRow, ...]:
    try:
        return ledger(plan.job, plan.cluster, plan.strategy)
    except (InputError, UnsupportedError):
        return ()


def _waterfall(rows: tuple[LedgerRow, ...]) -> Html:
    limit, first = rows[0].usable_bytes, rows[0].peak_before_bytes
    scale = max(limit, first or 0, *(row.peak_after_bytes for row in rows))
    bars = [] if first is None else [_bar("the naive run", first, first, scale)]
    bars += [_bar(r.switch, r.peak_before_bytes, r.peak_after_bytes, scale) for r in rows]
    words = (
        f"{NAIVE}. What a switch takes away is green, what it adds is orange, what stays is grey; "
        f"the red line is what tensors may take, {format_bytes(limit)}."
    )
    line = f"--limit-at:{100 * limit / scale:.3f}%"
    return Html(
        f'<figure><div class="bars ledger" style="{line}">{markup.join(bars)}</div>'
        f"<figcaption>{markup.text(words)}</figcaption></figure>"
    )


def _bar(name: str, before: int | None, after: int, scale: int) -> Html:
    known = after if before is None else before
    tone = "saved" if known > after else "added"
    parts = _part("stays", min(known, after), scale) + _part(tone, abs(known - after), scale)
    label = markup.text(f"{name}: peak {format_bytes(after)}")
    return Html(
        f'<div class="bar-row"><span class="bar-name">{markup.text(name)}</span>'
        f'<div class="bar" role="img" aria-label="{label}">{parts}'
        f'<i class="limit"></i></div>'
        f'<span class="bar-total">{format_bytes(after)}</span></div>'
    )


def _part(tone: str, num_bytes: int, scale: int) -> str:
    if not num_bytes:
        return ""
    return f'<span class="part {tone}" style="width:{100 * num_bytes / scale:.3f}%"></span>'


def _table(rows: tuple[LedgerRow, ...]) -> Html:
    right = frozenset({1, 2, 3, 4})
    lines = [naive_cells(rows[0]), *map(cells, rows)]
    bodies = [markup.row([markup.text(cell) for cell in line], right=right) for line in lines]
    return markup.table(JOBS, _HEADINGS, [markup.join(bodies)], right=right)
