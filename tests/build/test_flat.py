"""FSDP1 over real processes: what one device learns, as simulated, and saved for any sharding."""

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from brimful.build.program import named_parameters
from brimful.simulate.run import simulate
from brimful.train.handover import hand_over
from build.flat_programs import (
    CASES,
    METERED,
    SAVED,
    SAVED_AT,
    built,
    resumed,
    run,
    settings,
    trained,
    work,
)
from processes import run_group
from samples import make_cluster

pytestmark = pytest.mark.torch

NARROW = {"mixed", "masters", "nf4 mixed"}
"""Cases whose sums of 16 bits are made in another order."""
CLOSE = {"atol": 2e-6, "rtol": 1e-5}
NEAR = {"atol": 0, "rtol": 1e-2}
ALIKE = 0.99
"""Cosine of how weights of those have moved: a step of Adam takes small gradients for large."""
GLOO_BYTES = 16 * 2**10
"""What its threads let go of a little later, of small messages."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("flat")
    run_group(work, 2, 2, str(found))
    return found


@pytest.fixture(scope="module")
def sharded(folder):
    return torch.load(folder / "0.pt", weights_only=False)


def close(one, other, **within):
    torch.testing.assert_close(torch.tensor(one), torch.tensor(other), **within)


@pytest.mark.parametrize("case", CASES)
def test_losses_gradients_and_weights_are_those_of_one_device(sharded, case):
    steps, judged, weights = sharded[case]
    expected, alone, whole = run(CASES[case][0], {})
    within = NEAR if case in NARROW else CLOSE
    close(steps, expected, **within)
    close(judged, alone, **within)
    assert weights.keys() == whole.keys()
    if case not in NARROW:
        for name, tensor in whole.items():
            torch.testing.assert_close(weights[name], tensor, **CLOSE)
        return
    program, _ = built(CASES[case][0], {})
    trains = [pair for pair in named_parameters(program) if pair[1].requires_grad]
    first = {name: parameter.detach().float() for name, parameter in trains}
    moved, alone = (
        torch.cat([(each[name].float() - start).flatten() for name, start in first.items()])
        for each in (weights, whole)
    )
    assert torch.nn.functional.cosine_similarity(moved, alone, dim=0) > ALIKE


@pytest.mark.parametrize("case", METERED)
def test_the_simulated_peak_is_the_measured_one(sharded, case):
    job, strategy = settings(**CASES[case][0], how=CASES[case][1])
    cluster = msgspec.structs.replace(make_cluster("cpu"), num_devices=2)
    told = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
    assert abs(told - sharded[case, "peak"]) <= GLOO_BYTES


@pytest.mark.parametrize("name", SAVED)
def test_what_was_saved_is_gone_on_with_in_any_sharding(folder, sharded, name):
    expected = sharded[name, "flat"]
    close(sharded[name, "flat to each"], expected, **CLOSE)
    close(sharded[name, "each to flat"], expected, **CLOSE)
    close(resumed(folder / name / "flat", name, {}), expected, **CLOSE)


@pytest.mark.parametrize("name", SAVED)
def test_a_model_is_handed_over_whole(folder, name, tmp_path):
    alone, _ = built(SAVED[name], {})
    trained(alone, range(SAVED_AT))
    hand_over(alone, tokenizer_path=None, folder=tmp_path / "model", merged=True)
    ours, plain = (
        load_file(place / "model" / "model.safetensors")
        for place in (folder / name / "flat", tmp_path)
    )
    assert ours.keys() == plain.keys()
    for key, tensor in plain.items():
        torch.testing.assert_close(ours[key], tensor, **CLOSE)


def test_a_parameter_is_whole_again_to_the_bit(sharded):
    found, every = sharded["range"]
    assert torch.equal(found.view(torch.uint8), every.view(torch.uint8))  # -0.0 is not 0.0 here
