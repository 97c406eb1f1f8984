"""Which cases round on the way, so that sums in another order differ by more than fp32 does."""

from cases import Case
from evidence import ParityRow
from parity_summary import Bars

from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import IN_FP32, QAT
from brimful.values.strategy import world_size

NAMED = "tiny-"
"""What names of models of cases that are not drawn begin with."""
ROUNDED = Bars(loss=1e-3, norm=3e-2)
"""Of what is rounded to 16 bits or fewer on the way, by at most 2**-9 of a number of bf16: sums in
another order are rounded otherwise, and so are all that is computed of them."""


def is_rounded(case: Case) -> bool:
    """Whether anything is rounded on the way that sums in another order would round otherwise."""
    job, rule = case.job, OPTIMIZERS[case.job.optimizer]
    in_blocks = rule.rounds and world_size(case.strategy) > case.strategy.dp_replicate
    base = "same" if job.adapter is None else job.adapter.base
    kinds = (job.precision not in IN_FP32, job.method == QAT, base == "llm-int8")
    return any(kinds) or in_blocks or job.optimizer == "muon"


def bars_of(row: ParityRow) -> Bars:
    """Return what is asked of a row: cases of ``UPDATED`` have whole blocks, which round alike."""
    is_drawn = not row.case.job.model.name.startswith(NAMED)
    return ROUNDED if is_drawn and is_rounded(row.case) else Bars()
