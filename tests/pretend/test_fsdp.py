"""FSDP2 on the pretend GPU against the same program run for real, one rank of a world."""

import json
from pathlib import Path

import pytest
import torch
from tests.pretend import fsdp_program
from tests.pretend.bf16_units import has_bf16_units, need_bf16_units
from tests.pretend.chosen import chosen

import processes
from brimful import pretend
from brimful.errors import InputError

pytestmark = pytest.mark.torch

WORLD_SIZE, RANK = 8, 7
CASES = fsdp_program.cases(WORLD_SIZE)


def sharded(case, *, world_size=WORLD_SIZE, rank=RANK, **more):
    how = {**fsdp_program.cases(world_size)[case], **more}
    with pretend.gpu(world_size=world_size, rank=rank, imitate="cpu", says_cuda=False) as run:
        fsdp_program.train("gpu:0", **how)
    return run


def peak(run, where=""):
    return int(run.recording(where).live_bytes().max())


@pytest.fixture(scope="module")
def real_peaks(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("fsdp") / "peaks.json"
    script = Path(fsdp_program.__file__)
    names = [n for n in chosen(request, "case") if n != "bf16" or has_bf16_units()]
    processes.run([script, path, WORLD_SIZE, RANK, *names]).check_returncode()
    return json.loads(path.read_text("utf-8"))


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES)
def test_a_sharded_step_takes_what_it_takes_for_real(real_peaks, case):
    """A CPU keeps the statistics of a bf16 norm in bf16, a GPU in fp32: 12 KiB here."""
    if case == "bf16":
        need_bf16_units()
    few = fsdp_program.FEW_TOKENS
    simulated = peak(sharded(case, tokens=few))
    statistics = 2 * fsdp_program.DEPTH * few * 2 if case == "bf16" else 0
    assert simulated - statistics == pytest.approx(real_peaks[case], abs=64)


@pytest.mark.few(1)
@pytest.mark.parametrize("rank", [0, 3])
def test_ranks_of_equal_shards_take_the_same(rank):
    assert peak(sharded("zero-3", rank=rank)) == peak(sharded("zero-3"))


def test_a_larger_world_takes_less_of_each():
    peaks = [peak(sharded("zero-3", world_size=n, rank=0)) for n in (2, 8, 64)]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == len(peaks)


def test_what_is_gathered_and_reduced_has_streams_of_its_own():
    recording = sharded("zero-3").recording()
    gathers = [op for op in recording.ops if op == "resize_"]
    assert gathers
    assert len(set(recording.stream.tolist())) > 1


def test_offloaded_shards_lie_on_the_host():
    here, offloaded = sharded("zero-3"), sharded("zero-3", offload=True)
    assert peak(offloaded) < peak(here)
    assert peak(offloaded, "cpu") > peak(here, "cpu")


def test_a_second_process_group_is_refused():
    with pretend.gpu(world_size=2, says_cuda=False):
        torch.empty(1, device="gpu:0")
        with (
            pytest.raises(InputError, match="a process group of 2 exists"),
            pretend.gpu(world_size=4, says_cuda=False),
        ):
            pass
