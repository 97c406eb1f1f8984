"""Files that a verb is asked to write: refused before the work, and what simulate writes."""

import json
import pickle

import pytest
from tests.cli.conftest import TINY
from tests.pretend.test_perfetto import NEEDED
from tests.pretend.test_snapshot import check_history, check_segments

from brimful.cli.main import VERBS, parser_of
from brimful.pretend.tape_file import load_recording

WRITTEN = ("-o", "--out", "--snapshot", "--perfetto", "--tape")
INFERENCE = ("tiny.json", "--task", "inference", "--gpus", "a100-40gb", "--seq-len", 32)
FILES = ("--snapshot", "s.pickle", "--perfetto", "p.json", "--tape", "t.npz")
VERBS_THAT_WRITE = [
    ("plan", "gone.json", "-o", "missing/inner/x.yaml"),
    ("shop", "gone.json", "--tokens", "1B", "-o", "missing/inner/x.html"),
    ("export", "gone.yaml", "--to", "slurm", "-o", "missing/inner/x.sh"),
    ("simulate", "gone.json", "-o", "missing/inner/x.json"),
    ("simulate", "gone.json", "--task", "inference", "-o", "missing/inner/x.json"),
    ("simulate", "gone.json", "--snapshot", "missing/inner/x.pickle"),
    ("simulate", "gone.json", "--perfetto", "missing/inner/x.json"),
    ("pretend", "--snapshot", "missing/inner/x.pickle", "--", "gone.py"),
    ("pretend", "--perfetto", "missing/inner/x.json", "--", "gone.py"),
    ("pretend", "--tape", "missing/inner/x.npz", "--", "gone.py"),
]


@pytest.mark.parametrize("argv", VERBS_THAT_WRITE, ids=lambda argv: " ".join(argv[:4]))
def test_a_folder_that_is_not_there_is_named_before_anything_else(brimful, folder, argv):
    before = sorted(folder.rglob("*"))
    said = brimful(*argv)
    assert (said.code, said.out) == (2, "")
    assert "no folder missing/inner; make it first (mkdir -p missing/inner)" in said.err
    assert "missing/inner/x." in said.err
    assert said.err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("verb", ["train", "demo", "precision"])
def test_a_folder_of_a_run_may_be_made_but_not_in_a_file(brimful, verb):
    model = () if verb == "demo" else ("gone.json",)
    said = brimful(verb, *model, "--out", "data.txt/run")
    assert said.code == 2
    assert "--out data.txt/run cannot be written" in said.err
    assert "data.txt is a file and not a folder" in said.err


def test_every_flag_that_names_what_is_written_is_checked():
    """What ``export --out`` names is written by the run that the text starts."""
    unchecked = []
    for verb in VERBS:
        for action in parser_of(verb)._actions:
            named = set(action.option_strings) & set(WRITTEN)
            kind = getattr(action.type, "__qualname__", "")
            if named and not kind.startswith(("output_file.", "output_folder.")):
                unchecked.append((verb, *named))
    assert unchecked == [("export", "--out")]


def test_links_and_devices_are_written_through(brimful, folder):
    (folder / "real").mkdir()
    (folder / "link.yaml").symlink_to("real/plan.yaml")
    assert brimful("plan", *TINY, "--seq-len", "32", "-o", "link.yaml").code == 0
    assert (folder / "real" / "plan.yaml").exists()
    (folder / "astray.yaml").symlink_to("gone/plan.yaml")
    said = brimful("plan", *TINY, "--seq-len", "32", "-o", "astray.yaml")
    assert said.code == 2
    assert "there is no folder" in said.err
    assert not (folder / "gone").exists()
    (folder / "loop.yaml").symlink_to("loop.yaml")
    assert "loop of links" in brimful("plan", *TINY, "-o", "loop.yaml").err


def live_peak(snapshot):
    """Return the most that is alive at once, by the snapshot's own history."""
    live = most = 0
    for entry in snapshot["device_traces"][0]:
        live += {"alloc": 1, "free_requested": -1}.get(entry["action"], 0) * entry["size"]
        most = max(most, live)
    return most


@pytest.mark.torch
@pytest.mark.parametrize("argv", [(*TINY, "--seq-len", 32), INFERENCE], ids=["training", "text"])
def test_simulate_writes_what_pretend_writes(brimful, folder, argv):
    said = brimful("simulate", *argv, *FILES, "--json")
    assert said.code == 0, said.err
    peak = json.loads(said.out)["simulated_peak_allocated_bytes"]
    snapshot = pickle.loads((folder / "s.pickle").read_bytes())  # noqa: S301 - our own
    check_segments(snapshot)
    check_history(snapshot)
    assert live_peak(snapshot) == peak
    events = json.loads((folder / "p.json").read_text())["traceEvents"]
    assert all(NEEDED[event["ph"]] <= set(event) for event in events)
    assert max(event["args"].get("bytes", 0) for event in events if event["ph"] == "C") >= peak
    recording = load_recording(folder / "t.npz")
    assert recording.live_bytes().max() == peak


@pytest.mark.torch
@pytest.mark.usefixtures("folder")
def test_what_the_allocator_is_told_is_in_the_snapshot(brimful, folder):
    settings = ("--allocator", "expandable_segments:True")
    asked = ("simulate", *INFERENCE, "--snapshot", "s.pickle", *settings)
    assert "written   s.pickle: a PyTorch memory snapshot for" in brimful(*asked).out
    said = brimful(*asked, "--json")
    assert json.loads(said.out)["reserved"]["allocator"] == "expandable_segments:True"
    snapshot = pickle.loads((folder / "s.pickle").read_bytes())  # noqa: S301 - our own
    assert {segment["is_expandable"] for segment in snapshot["segments"]} == {True}
