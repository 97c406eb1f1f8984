import io
import shlex
from pathlib import Path

from rich.console import Console

from brimful.train.observers import PlainObserver, RichObserver, StepReport, describe_stop


def report(step, num_steps=10):
    return StepReport(
        step=step,
        num_steps=num_steps,
        loss=2.34567,
        learning_rate=3e-4,
        grad_norm=1.234,
        tokens_per_s=12_345,
        step_s=0.5,
        is_process=True,
        used_bytes=1 << 30,
        peak_bytes=3 << 29,
        limit_bytes=2 << 30,
        remaining_s=90,
    )


NUMBERS = (
    "loss 2.3457  lr 3.00e-04  norm 1.23  12.3K tok/s  "
    "process 1.00 GiB (peak 1.50 GiB)  90.00 s left"
)


def test_plain_lines_say_every_number():
    file = io.StringIO()
    observer = PlainObserver(file, every_s=0)
    observer.on_step(report(1))
    observer.on_eval(1, 3.14159)
    observer.on_checkpoint(1, Path("run/checkpoints/step-00000001"))
    observer.close()
    assert file.getvalue().splitlines() == [
        f"step 1/10  {NUMBERS}",
        "step 1: held-out loss 3.1416",
        "step 1: saved run/checkpoints/step-00000001",
    ]


def test_plain_lines_are_rare_but_the_last_step_is_said():
    file = io.StringIO()
    observer = PlainObserver(file, every_s=1000)
    for step in range(1, 11):
        observer.on_step(report(step))
    assert [line.split()[1] for line in file.getvalue().splitlines()] == ["1/10", "10/10"]


def test_plain_lines_go_to_the_standard_output_of_the_moment(capsys):
    PlainObserver().on_message("hello")
    assert capsys.readouterr().out == "hello\n"


def test_the_live_line_says_every_number_and_sentences_stay_whole():
    file = io.StringIO()
    observer = RichObserver(Console(file=file, force_terminal=True, width=200))
    observer.on_message("a path [/tmp/x] " + "y" * 300)
    observer.on_step(report(3))
    observer.on_eval(3, 3.14159)
    observer.close()
    text = file.getvalue()
    assert "a path [/tmp/x] " + "y" * 300 in text
    assert "step 3/10" in text
    assert NUMBERS in text
    assert "held-out loss 3.1416" in text
    # The cursor is shown again.
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_closing_a_live_line_that_never_began_is_fine():
    RichObserver(Console(file=io.StringIO(), force_terminal=True)).close()


def test_the_way_to_resume_can_be_pasted():
    text = describe_stop(7, Path("my runs/one"))
    command = shlex.split(text.split("go on with: ")[1])
    assert "stopped after step 7" in text
    out = "my runs/one"
    assert command == ["brimful", "train", f"{out}/plan.yaml", "--out", out, "--resume"]
