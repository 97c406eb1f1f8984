"""Published speeds of Megatron: how tables are read, and that the bars are held today."""

import pytest
from bridge_speeds import _rows, read_speeds
from bridge_speeds_part import predicted, summarize

PAGE = """
## 26.04 container
### System: DGX-B200
| Model | Precision | #-GPUs | GBS | MBS | Sequence Length | FSDP | TP | PP | CP | VP | EP | \
Tokens / sec / GPU |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
| LLAMA3_8B | FP8-CS (FP8-MX) | 8 | 128 | 2 (1) | 8192 | n/a | 1 | 1 | 1 | n/a | n/a | \
1,024 (31000) |
"""


def test_a_cell_may_tell_of_two_runs_and_of_none():
    first, second = _rows(PAGE)
    assert (first.precision, second.precision) == ("FP8-CS", "FP8-MX")
    assert (first.micro_batch, second.micro_batch) == (2, 1)
    assert (first.tokens_per_s_per_gpu, second.tokens_per_s_per_gpu) == (1024, 31000)
    assert (first.fsdp, first.vp, first.ep) == (0, 1, 1)


def test_what_is_no_number_is_refused():
    with pytest.raises(ValueError, match="global_batch is '128 or so'"):
        list(_rows(PAGE.replace("| 128 |", "| 128 or so |")))


def test_the_bars_are_held_today():
    rows = [predicted(speed) for speed in read_speeds()]
    summary = summarize(rows)
    assert not summary.missed
    others = [row for row in rows if not row.is_fitted]  # those fitted to are in no figure
    assert 0 < len(others) < len(rows)
    assert f" of {len(others)}; within 30%" in summary.findings[1]
