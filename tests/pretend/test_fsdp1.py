"""FSDP1 on the pretend GPU, unmodified, against the same programs run for real."""

import json
from pathlib import Path

import pytest
import torch
from tests.pretend import fsdp1_program
from tests.pretend.chosen import chosen
from torch.distributed.fsdp import CPUOffload

import processes
from brimful import pretend
from brimful.show.pretend import pretend_summary
from brimful.show.terminal import MOST_OF_ALL, summary_lines

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # what FSDP1 says of frozen parameters
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # that it is the older of the two
]

CASES = fsdp1_program.CASES
SMALL_BYTES = 64
"""Step counts, and scalars that gradients begin with."""
SEED_BYTES = 5056
"""State of the host's random numbers, which a checkpoint keeps; a GPU's lies on the host."""
STATISTICS_BYTES = 2 * 2 * fsdp1_program.DEPTH * fsdp1_program.TOKENS
"""A GPU keeps those of a 16-bit norm in fp32, a CPU in 16 bits."""


def pretended(case="", **how):
    with pretend.gpu(world_size=fsdp1_program.WORLD_SIZE, imitate="cpu") as run:
        fsdp1_program.train("cuda:0", **CASES.get(case, {}), **how)
    return run


def real(backend, names, folder):
    path = folder / "peaks.json"
    script = Path(fsdp1_program.__file__)
    processes.run([script, backend, path, *names]).check_returncode()
    return json.loads(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def real_peaks(request, tmp_path_factory):
    return real("fake", sorted(chosen(request, "case")), tmp_path_factory.mktemp("fsdp1"))


@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES)
def test_a_step_takes_what_it_takes_for_real(real_peaks, case):
    expected = real_peaks[case]
    if CASES[case].get("checkpointed"):
        expected -= fsdp1_program.DEPTH * SEED_BYTES
    slack = SMALL_BYTES
    if "mixed" in case:
        slack += STATISTICS_BYTES
    assert pretended(case).peak_allocated_bytes == pytest.approx(expected, abs=slack)


def test_offloaded_shards_and_their_moments_lie_on_the_host():
    here, away = pretended("orig"), pretended("orig", cpu_offload=CPUOffload(offload_params=True))
    model = fsdp1_program.Model(lora=False, checkpointed=False, reentrant=False)
    shards = sum(p.nbytes for p in model.parameters()) // fsdp1_program.WORLD_SIZE
    assert away.peak_allocated_bytes == here.peak_allocated_bytes - 3 * shards
    hosts = [int(run.recording("cpu").live_bytes().max()) for run in (here, away)]
    assert hosts[1] >= hosts[0] + 2 * shards


def test_what_is_sent_from_the_first_process_takes_nothing_at_the_peak():
    assert (
        pretended("flat", sync_module_states=True).peak_allocated_bytes
        == pretended("flat").peak_allocated_bytes
    )


def test_a_tensor_moved_in_place_stays_the_one_that_is_known():
    with pretend.gpu() as run:
        tensor = torch.nn.Parameter(torch.zeros(64))
        tensor.mine = "kept"
        tensor.data = tensor.to("cuda")
        assert tensor.device.type == "cuda"
        assert tensor.mine == "kept"
        (tensor * 2).sum().backward()
        assert tensor.grad.device.type == "cuda"
        tensor.grad = None
        tensor.data = tensor.to("cpu")
        assert tensor.device.type == "cpu"
    sums = 2 * tensor.element_size()  # and the gradient that backward begins with
    assert run.peak_allocated_bytes == 2 * tensor.nbytes + sums


def test_a_stream_is_heard_of_where_modes_are_off():
    with pretend.gpu() as run:
        tensor, other = torch.zeros(64, device="cuda"), torch.cuda.Stream()
        with torch._C._DisableTorchDispatch():
            tensor.record_stream(other)
        heard = run.recording()
    assert heard.in_use_until.any()


def test_the_answer_is_one_screen_with_what_to_change_first():
    lines = summary_lines(pretend_summary(pretended("mixed-orig").report(), ("train.py",)))
    lines = [str(line) for line in lines]
    labels = [line.partition(" ")[0] for line in lines]
    assert {"memory", "peak", "tensors", "first"} <= {*labels}
    assert labels.index("peak") < labels.index("tensors") < labels.index("first")
    assert len(lines) <= MOST_OF_ALL
    text = " ".join(" ".join(lines).split())
    assert "less" in text
    assert "_fsdp_wrapped_module" not in text
