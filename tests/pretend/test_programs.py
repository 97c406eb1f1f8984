"""Small programs of every kind on the pretend GPU against the same programs run for real."""

import gc
import json
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.pretend import real_peaks
from tests.pretend.bf16_units import has_bf16_units, kernels_take_copies, need_bf16_units
from tests.pretend.chosen import chosen
from tests.pretend.programs import ONLY_PRETENDED
from tests.pretend.programs import PROGRAMS as PLAIN

import processes
from brimful import pretend

pytestmark = pytest.mark.torch

RELATIVE, ABSOLUTE_BYTES = 0.001, 4096
COPIES = "a CPU's product copies matrices whose strides it cannot take (grad of sum: all 0)"
ONEDNN = "oneDNN's scratchpad for a product"
FLASH = "the CPU's attention kernel keeps a block of scores, and its backward a copy of the output"


class Difference(NamedTuple):
    """Bytes that a CPU takes and a tensor program does not show: a kernel's own, or named ones."""

    why: str
    num_bytes: int | None = None


DIFFERENCES = {
    "convolution_channels_last": Difference("the pool's backward makes its gradient contiguous"),
    "attention_causal": Difference(FLASH),
    "attention_boolean_mask": Difference(FLASH),
    "attention_additive_mask": Difference(FLASH),
    "attention_grouped": Difference(FLASH),
    "attention_with_dropout": Difference(COPIES),
    "autocast": Difference(ONEDNN),
    "autocast_without_cache": Difference(ONEDNN),
    "autocast_checkpointed": Difference(ONEDNN),
    "autocast_interrupted": Difference(ONEDNN),
    "muon": Difference(ONEDNN),
    "moved_and_cast": Difference(COPIES),
    "called_twice": Difference(COPIES),
    "called_statelessly": Difference(COPIES),
}


def simulated(program):
    """Return the recording of a program that ran on the pretend GPU."""
    gc.freeze()
    gc.disable()  # as in the real run
    try:
        with pretend.gpu(imitate="cpu", says_cuda=False) as run, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program("gpu:0")
        gc.collect()
    finally:
        gc.enable()  # and what was frozen stays: all that is imported would be looked at again
    return run.recording()


class Peaks(NamedTuple):
    """Of one program, in bytes; ``without_kernels``: without what kernels take for themselves."""

    simulated: int
    real: int
    without_kernels: int
    left: int


@pytest.fixture(scope="module")
def peaks(request, tmp_path_factory):
    """Run programs for real, all in one process, and simulate them beside it meanwhile."""
    folder = tmp_path_factory.mktemp("programs")
    names = chosen(request, "name") & real_peaks.programs().keys()
    run = names - (set() if has_bf16_units() else {*BF16_PRODUCTS})
    command = ["-m", real_peaks.__name__, folder / "peaks.json", *run]
    process = processes.Started(command, cwd=Path(__file__).parents[2])
    try:
        known = real_peaks.programs()
        recordings = {name: simulated(known[name]) for name in names}
        done = process.wait()
    finally:
        process.kill()
    assert done.returncode == 0, done.stderr
    real = json.loads((folder / "peaks.json").read_text("utf-8"))
    found = {}
    for name, recording in recordings.items():
        live = recording.live_bytes()
        found[name] = Peaks(int(live.max()), *real.get(name, (0, 0)), int(live[-1]))
    return found


BF16_PRODUCTS = ("pure_bf16", "mixed_by_hand")
"""Programs whose real run multiplies in bf16 outside autocast."""


@pytest.mark.few(16)
@pytest.mark.parametrize("name", real_peaks.programs())
def test_a_program_takes_what_it_takes_for_real(peaks, name):
    if name in BF16_PRODUCTS:
        need_bf16_units()
    found, difference = peaks[name], DIFFERENCES.get(name)
    bound = max(RELATIVE * found.real, ABSOLUTE_BYTES)
    real = found.real
    if difference is not None and (difference.why != ONEDNN or kernels_take_copies()):
        assert abs(found.simulated - real) > bound, "no difference is left to be explained"
        named = difference.num_bytes
        real = found.without_kernels if named is None else real - named
    assert found.simulated == pytest.approx(real, abs=bound)


@pytest.mark.few(16)
@pytest.mark.parametrize("name", real_peaks.programs())
def test_when_a_program_has_ended_nothing_is_left_on_the_gpu(peaks, name):
    assert peaks[name].left == 0


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ONLY_PRETENDED)
def test_what_a_cpu_does_otherwise_runs_on_the_pretend_gpu(name):
    """A CPU has no host to save on."""
    recording = simulated(ONLY_PRETENDED[name])
    assert recording.live_bytes().max() > 2**20


def test_what_is_saved_on_the_host_is_not_on_the_gpu():
    gpu, host = simulated(ONLY_PRETENDED["saved_on_the_host"]), simulated(PLAIN["plain_mlp"])
    assert gpu.live_bytes().max() < host.live_bytes().max()
