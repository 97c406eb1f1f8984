import io
from pathlib import Path

import pytest
from rich.console import Console

from brimful.text import terminal
from brimful.train.live import RichObserver, view
from brimful.units import GIB
from brimful.values.run_files import EvalRow
from train.reports import make_report

LAST = EvalRow(step=9000, heldout_loss=2.4712, perplexity=11.84)
BEST = EvalRow(step=8000, heldout_loss=2.4634, perplexity=11.75, is_best=True)
FULLEST = {
    "num_steps": 100_000,
    "num_skipped": 123,
    "loss_scale": 65536.0,
    "mfu": 0.4123,
    "hfu": 0.5321,
    "remaining_s": 359_000,
}


def drawn(report, *, width, last=None, best=None):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(view(report, last, best))
    return console.file.getvalue().splitlines()


def screen(width=200):
    file = io.StringIO()
    return file, terminal.console(file=file, force_terminal=True, width=width)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("is_process", [True, False])
def test_the_fullest_view_is_whole_within_its_columns(width, is_process):
    report = make_report(99_999, is_process=is_process, **FULLEST)
    lines = drawn(report, width=width, last=LAST, best=BEST)
    assert all(len(line.rstrip()) <= width for line in lines)
    assert not any("…" in line for line in lines)
    text = "\n".join(lines)
    for said in (
        "99999/100000  99.7 h left",
        "1.00 GiB",
        "1.50 GiB",
        "2.00 GiB",
        "loss 2.3457",
        "lr 3.00e-04",
        "norm 1.23",
        "12.3K tok/s",
        "500 ms/step",
        "MFU 41.2%",
        "HFU 53.2%",
        "scale 65536  123 skipped",
        "step 9000: held-out loss 2.4712",
        "2.4634 at step 8000",
    ):
        assert said in text


def test_bars_are_as_long_as_their_shares():
    def bars(**changes):
        lines = drawn(make_report(changes.pop("step"), is_process=False, **changes), width=100)
        return [line.count("━") for line in lines[:3]]

    whole = bars(step=10, used_bytes=2 * GIB, peak_bytes=2 * GIB)
    half = bars(step=5, used_bytes=GIB, peak_bytes=2 * GIB)
    assert abs(half[1] - whole[1] / 2) <= 1
    assert half[2] == whole[2] > 10


def test_a_plain_fp32_run_shows_neither_scale_nor_evaluation_nor_hfu():
    text = "\n".join(drawn(make_report(3, mfu=0.4, hfu=0.4), width=100))
    assert "MFU 40.0%" in text
    assert not any(word in text for word in ("scale", "held-out", "HFU"))


def test_a_peak_near_the_limit_is_drawn_in_another_tone():
    def ansi(peak_bytes):
        console = Console(file=io.StringIO(), width=80, force_terminal=True)
        console.print(view(make_report(3, is_process=False, peak_bytes=peak_bytes), None, None))
        return console.file.getvalue()

    assert "\x1b[1;31m" in ansi(int(1.96 * GIB))
    assert "\x1b[1;31m" not in ansi(int(1.5 * GIB))


def test_the_terminal_shows_numbers_and_sentences_stay_whole():
    file, console = screen()
    observer = RichObserver(console)
    observer.on_message("a path [/tmp/x] " + "y" * 300)
    observer.on_step(make_report(3))
    observer.on_eval(EvalRow(step=3, heldout_loss=3.14159, is_best=True))
    observer.on_checkpoint(3, Path("run/checkpoints/step-00000003"))
    observer.close()
    text = file.getvalue()
    assert "a path [/tmp/x] " + "y" * 300 in text
    assert "3/10" in text
    assert "loss 2.3457" in text
    assert "held-out loss 3.1416" in text
    assert "step 3: saved run/checkpoints/step-00000003" in text
    # The cursor is shown again.
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_what_is_done_before_the_first_step_is_shown_until_it_comes():
    file, console = screen()
    observer = RichObserver(console)
    observer.on_stage("reading the data")
    observer.on_stage("building the model")
    before = file.getvalue()
    observer.on_step(make_report(1))
    observer.close()
    assert "reading the data ..." in before
    after = file.getvalue()[len(before) :]
    assert "loss 2.3457" in after
    # The last frame is of the step alone.
    assert "..." not in after[after.rindex("loss 2.3457") :]


def test_an_error_before_the_first_step_leaves_the_terminal_as_it_was():
    file, console = screen()
    observer = RichObserver(console)
    observer.on_stage("reading the data")
    observer.close()
    text = file.getvalue()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_closing_a_view_that_never_began_is_fine():
    RichObserver(screen()[1]).close()
