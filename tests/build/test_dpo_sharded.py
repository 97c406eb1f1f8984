"""Preference steps whose models are sharded: those of one device, and as simulated."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
import torch

from brimful.simulate.run import simulate
from brimful.units import MIB
from build.dpo_programs import ALONE, ASKED, NUM_ASKED, SHARDED, asked, run, settings, work
from processes import run_group
from samples import make_cluster

pytestmark = pytest.mark.torch


@cache
def sharded():
    with TemporaryDirectory() as folder:
        run_group(work, 2, 2, folder)
        return torch.load(Path(folder, "0.pt"), weights_only=False)


@cache
def asked_alone():
    with TemporaryDirectory() as folder:
        return asked(Path(folder, "alone"))


@cache
def alone(name):
    return run(*settings(name))


@pytest.mark.parametrize("case", SHARDED)
def test_losses_gradients_and_weights_are_those_of_one_device(case):
    name, _ = SHARDED[case]
    steps, weights, _ = sharded()[0][case]
    expected, whole, _ = alone(name)
    if name == "mixed":  # Adam divides what 16 bits round by its own size
        torch.testing.assert_close(torch.tensor(steps), torch.tensor(expected), atol=0, rtol=1e-2)
        return
    within = {"atol": 2e-6, "rtol": 1e-5}
    torch.testing.assert_close(torch.tensor(steps), torch.tensor(expected), **within)
    for parameter, tensor in whole.items():
        torch.testing.assert_close(weights[parameter], tensor, **within)


@pytest.mark.long  # cost/test_preference.py has peaks of shards, simulate/test_dpo.py measured ones
@pytest.mark.parametrize("case", SHARDED)
def test_the_simulated_peak_is_the_measured_one(case):
    name, how = SHARDED[case]
    job, strategy = settings(name, **how)
    cluster = msgspec.structs.replace(make_cluster("cpu"), num_devices=2)
    told = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
    measured = sharded()[0][case][2]
    assert abs(told - measured) <= max(0.005 * measured, MIB / 4)


def test_shards_of_both_models_are_held():
    whole, parted = alone("resident")[2], sharded()[0]["resident, zero 3"][2]
    assert parted < 0.75 * whole
    assert set(ALONE) == {name for name, _ in SHARDED.values()}


@pytest.mark.parametrize("case", ASKED)
def test_what_is_asked_beforehand_is_asked_by_all_processes_together(case):
    scores, loss, norm = asked_alone()
    told, its_loss, its_norm = sharded()[1][case]
    assert told.shape == (NUM_ASKED, 2)
    assert (told < 0).all()
    torch.testing.assert_close(told, scores, atol=1e-5, rtol=1e-5)
    assert (its_loss, its_norm) == pytest.approx((loss, norm), rel=1e-4)
