import resource
import signal
import subprocess
import sys
import threading

import pytest
from tests.train.programs import build, nudge, progress, same, weights

import processes
from brimful.errors import RunError

pytestmark = pytest.mark.torch


@pytest.fixture
def program(plan_with):
    program = build(plan_with())
    nudge(program, 1)
    return program


@pytest.fixture
def slow_disk(monkeypatch):
    """Hold every write back until it is let go; the write itself is the real one."""
    from brimful.train import saver

    gate, write = threading.Event(), saver.write_checkpoint

    def wait_and_write(*arguments, **named):
        assert gate.wait(60)
        return write(*arguments, **named)

    monkeypatch.setattr(saver, "write_checkpoint", wait_and_write)
    yield gate
    gate.set()


@pytest.fixture
def no_room(monkeypatch):
    """Let no file grow beyond what a manifest needs, and none that Python compiles be cut."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))

    yield fill
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def open_async(root, **kept):
    from brimful.train.rotation import Kept
    from brimful.train.saver import open_saver

    return open_saver(root, mode="async", kept=Kept(**{"num_newest": 2, "best": False, **kept}))


def loaded(folder, plan):
    from brimful.train.checkpoint import load_checkpoint

    fresh = build(plan)
    load_checkpoint(folder, fresh)
    return fresh


def everything(program):
    from brimful.train.program_state import capture

    state = capture(program, base_crc32=None)
    return {name: tensor.clone() for name, tensor in state.tensors.items()}


def test_training_goes_on_while_it_saves_and_changes_nothing_of_what_is_saved(
    program, plan_with, tmp_path, slow_disk
):
    import torch

    from brimful.train.checkpoint import save_checkpoint

    plan = plan_with()
    at_once = save_checkpoint(tmp_path / "sync", program, progress(plan, 1))
    with open_async(tmp_path / "async") as saver:
        saver.save(program, progress(plan, 1))
        for seed in (2, 3, 4):
            nudge(program, seed)
            torch.rand(5)
        assert saver.finished() == []
        assert not (tmp_path / "async" / "step-00000001").exists()
        slow_disk.set()
        ((step, path),) = saver.wait()
    assert (step, path) == (1, tmp_path / "async" / "step-00000001")
    one, other = everything(loaded(at_once, plan)), everything(loaded(path, plan))
    assert same(one, other)
    assert not same(one, everything(program))


def test_both_ways_write_the_same_bytes(program, plan_with, tmp_path):
    from brimful.train.rotation import Kept
    from brimful.train.saver import open_saver

    files = []
    for mode in ("sync", "async"):
        kept = Kept(num_newest=2, best=False)
        with open_saver(tmp_path / mode, mode=mode, kept=kept) as saver:
            saver.save(program, progress(plan_with(), 1))
        files.append((tmp_path / mode / "step-00000001" / "__0_0.distcp").read_bytes())
    assert files[0] == files[1]


def test_there_is_one_copy_and_its_size_is_known_before(program, plan_with, tmp_path, slow_disk):
    slow_disk.set()
    parameters = sum(p.numel() for p in program.model.parameters())
    num_tensors = len(list(program.model.parameters()))
    with open_async(tmp_path) as saver:
        saver.save(program, progress(plan_with(), 1))
        first = {name: tensor.data_ptr() for name, tensor in saver._copy.items()}
        assert sum(t.nbytes for t in saver._copy.values()) == 4 * (3 * parameters + num_tensors)
        saver.save(program, progress(plan_with(), 2))
        assert {name: tensor.data_ptr() for name, tensor in saver._copy.items()} == first


def test_the_next_save_waits_for_the_one_before(program, plan_with, tmp_path, slow_disk):
    with open_async(tmp_path) as saver:
        saver.save(program, progress(plan_with(), 1))
        timer = threading.Timer(0.2, slow_disk.set)
        timer.start()
        saver.save(program, progress(plan_with(), 2))
        assert slow_disk.is_set()
        assert (tmp_path / "step-00000001").exists()
        assert [step for step, _ in saver.wait()] == [1, 2]
        timer.join()


def test_the_end_of_the_block_waits(program, plan_with, tmp_path, slow_disk):
    with open_async(tmp_path) as saver:
        saver.save(program, progress(plan_with(), 1))
        threading.Timer(0.2, slow_disk.set).start()
    assert (tmp_path / "step-00000001" / "checkpoint.json").exists()


def test_old_ones_go_in_the_background_too(program, plan_with, tmp_path):
    with open_async(tmp_path, num_newest=1, best=True) as saver:
        for step, loss in ((1, 2.0), (2, 1.0), (3, 3.0), (4, None)):
            saver.save(program, progress(plan_with(), step, heldout_loss=loss))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-00000002", "step-00000004"]


def save_twice(saver, program, plan, fill):
    saver.save(program, progress(plan, 1))
    saver.wait()
    fill()
    saver.save(program, progress(plan, 2))


TOO_LARGE = r"step-00000002 cannot be written \(File too large\)"


@pytest.mark.parametrize("ask", ["finished", "wait", "save"])
def test_a_failed_write_is_told_once_by_whatever_comes_next(
    program, plan_with, tmp_path, no_room, ask
):
    with open_async(tmp_path) as saver:
        save_twice(saver, program, plan_with(), no_room)
        with pytest.raises(RunError, match=TOO_LARGE):
            ask_again(saver, program, plan_with(), ask)
        assert saver.wait() == []
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert same(weights(loaded(tmp_path / "step-00000001", plan_with())), weights(program))


def ask_again(saver, program, plan, ask):
    if ask == "save":
        saver.save(program, progress(plan, 3))
    elif ask == "wait":
        saver.wait()
    else:
        saver._writing.exception()
        saver.finished()


def test_a_failed_write_is_told_at_the_end(program, plan_with, tmp_path, no_room):
    with pytest.raises(RunError, match=TOO_LARGE), open_async(tmp_path) as saver:
        save_twice(saver, program, plan_with(), no_room)


def test_an_error_that_ends_the_run_tells_of_the_failed_write_too(
    program, plan_with, tmp_path, no_room
):
    with pytest.raises(RunError, match=f"^the loss is NaN; besides, .*{TOO_LARGE}"):
        fail(RunError("the loss is NaN"), program, plan_with(), tmp_path, no_room)
    with pytest.raises(KeyError) as error:
        fail(KeyError("odd"), program, plan_with(), tmp_path / "other", lambda: None)
    assert "File too large" in error.value.__notes__[0]


def fail(error, program, plan, root, fill):
    with open_async(root) as saver:
        if root.name == "other":
            saver.save(program, progress(plan, 2))
        else:
            save_twice(saver, program, plan, fill)
        raise error


def test_a_full_disk_is_one_sentence_from_the_background(program, plan_with, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=700k", "none", str(disk)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a small disk needs root: {error}")
    try:
        with (
            pytest.raises(RunError, match=r"no space left on the disk of .*step-00000002; free"),
            open_async(disk / "run") as saver,
        ):
            save_twice(saver, program, plan_with(), lambda: None)
        assert [path.name for path in (disk / "run").iterdir()] == ["step-00000001"]
        loaded(disk / "run" / "step-00000001", plan_with())
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# Processes that end, or are ended, while they save.

DRIVER = """
import os, signal, sys, threading, time
from pathlib import Path

root, plan_path, how = sys.argv[1:]

def audit(event, arguments):
    if threading.current_thread() is threading.main_thread() or event not in ("open", "os.rename"):
        return
    path = str(arguments[0])
    if how == "tensors" and path.endswith(".step-00000002.tmp/.metadata.tmp"):
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "rename" and event == "os.rename" and path.endswith(".step-00000002.tmp"):
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit" and path.endswith(".step-00000002.tmp/.metadata.tmp"):
        time.sleep(0.5)

sys.addaudithook(audit)
from brimful.values.plan import read_plan
from brimful.train.rotation import Kept
from brimful.train.saver import open_saver
from tests.train.programs import build, nudge, progress

plan = read_plan(Path(plan_path))
program = build(plan)
# The block is never left, as when a process ends from somewhere below.
opened = open_saver(Path(root), mode="async", kept=Kept(num_newest=2, best=False))
saver = opened.__enter__()
for step in (1, 2):
    nudge(program, step)
    saver.save(program, progress(plan, step))
"""


@pytest.mark.parametrize(
    ("how", "code", "left"),
    [
        ("tensors", -signal.SIGKILL, {"step-00000001", ".step-00000002.tmp"}),
        ("rename", -signal.SIGKILL, {"step-00000001", ".step-00000002.tmp"}),
        ("exit", 0, {"step-00000001", "step-00000002"}),
    ],
)
def test_a_process_that_ends_while_it_saves_leaves_whole_checkpoints(
    plan_with, tmp_path, how, code, left
):
    from brimful.values.plan import write_yaml

    write_yaml(plan_with(), tmp_path / "plan.yaml")
    root = tmp_path / "checkpoints"
    ended = processes.run(["-c", DRIVER, root, tmp_path / "plan.yaml", how])
    assert ended.returncode == code, ended.stderr
    assert {path.name for path in root.iterdir()} == left
    for path in root.glob("step-*"):
        loaded(path, plan_with())
