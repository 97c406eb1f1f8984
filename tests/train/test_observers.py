import io
import shlex
from pathlib import Path

from brimful.train.observers import Observers, PlainObserver, describe_stop
from brimful.train.step_report import describe_step
from brimful.values.run_files import EvalRow
from train.reports import make_report

NUMBERS = (
    "loss 2.3457  lr 3.0e-04  norm 1.23  12.3K tok/s  peak 512.00 MiB  process 1.50 GiB  "
    "90.00 s left"
)


class Listener:
    """Remembers what it is told; raises where it is told to."""

    def __init__(self, *, raises_at=None):
        self.told = []
        self._raises_at = raises_at

    def __getattr__(self, method):
        def tell(*told):
            self.told.append((method, *told))
            if method == self._raises_at:
                raise OSError("no space left")

        return tell


def test_plain_lines_say_every_number():
    file = io.StringIO()
    observer = PlainObserver(file, every_s=0)
    observer.on_stage("reading the data")
    observer.on_step(make_report(1))
    observer.on_eval(EvalRow(step=1, heldout_loss=3.14159, perplexity=23.14, is_best=True))
    observer.on_eval(EvalRow(step=2, heldout_loss=0.5, accuracy=0.875))
    observer.on_checkpoint(1, Path("run/checkpoints/step-00000001"))
    observer.close()
    assert file.getvalue().splitlines() == [
        "reading the data ...",
        f"step 1/10  {NUMBERS}",
        "step 1: held-out loss 3.1416  perplexity 23.14  best so far",
        "step 2: held-out loss 0.5000  accuracy 87.50%",
        "step 1: saved run/checkpoints/step-00000001",
    ]


def test_a_scaled_step_says_scale_and_skips_and_dashes_for_what_is_no_number():
    report = make_report(
        3, num_skipped=2, loss=None, grad_norm=None, loss_scale=65536.0, skipped=True, mfu=0.4123
    )
    line = describe_step(report)
    assert "loss -  " in line
    assert "norm -  " in line
    assert "MFU 41.2%" in line
    assert line.endswith("scale 65536  2 skipped")


def test_a_plain_line_stays_short():
    report = make_report(1200, num_steps=10_000, remaining_s=3590, mfu=0.4123)
    assert len(describe_step(report)) <= 125


def test_a_process_is_not_called_the_peak_of_what_is_trained():
    words = describe_step(make_report(1, measured=None))
    assert "process 1.50 GiB" in words
    assert "peak" not in words
    assert "  peak 1.50 GiB" in describe_step(make_report(1, is_process=False))


def test_plain_lines_are_rare_but_the_last_step_is_said():
    file = io.StringIO()
    observer = PlainObserver(file, every_s=1000)
    for step in range(1, 11):
        observer.on_step(make_report(step))
    assert [line.split()[1] for line in file.getvalue().splitlines()] == ["1/10", "10/10"]


def test_plain_lines_go_to_the_standard_output_of_the_moment(capsys):
    PlainObserver().on_message("hello")
    assert capsys.readouterr().out == "hello\n"


def test_several_observers_are_told_the_same():
    main, logger = Listener(), Listener()
    observers = Observers(main)
    observers.on_stage("reading the data")
    observers.add(logger)
    row = EvalRow(step=1, heldout_loss=1.0)
    observers.on_eval(row)
    observers.on_checkpoint(1, Path("x"))
    observers.close()
    assert main.told == [
        ("on_stage", "reading the data"),
        ("on_eval", row),
        ("on_checkpoint", 1, Path("x")),
        ("close",),
    ]
    assert logger.told == main.told[1:]


def test_a_logger_that_fails_is_left_out_and_the_user_is_told():
    main, bad, good = Listener(), Listener(raises_at="on_checkpoint"), Listener()
    observers = Observers(main)
    observers.add(bad)
    observers.add(good)
    observers.on_checkpoint(1, Path("x"))
    observers.on_checkpoint(2, Path("y"))
    observers.close()
    assert len(bad.told) == 1
    assert [told[0] for told in good.told] == ["on_checkpoint", "on_checkpoint", "close"]
    said = "Listener failed (no space left); the run goes on without it"
    assert main.told[1] == ("on_message", said)


def test_the_main_observer_is_closed_although_a_logger_fails():
    main = Listener()
    observers = Observers(main)
    observers.add(Listener(raises_at="close"))
    observers.close()
    assert [told[0] for told in main.told] == ["on_message", "close"]


def test_the_way_to_resume_can_be_pasted():
    text = describe_stop(7, Path("my runs/one"))
    command = shlex.split(text.split("go on with: ")[1])
    assert "stopped after step 7" in text
    out = "my runs/one"
    assert command == ["brimful", "train", f"{out}/plan.yaml", "--out", out, "--resume"]
