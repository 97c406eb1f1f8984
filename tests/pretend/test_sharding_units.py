"""A unit of FSDP that is most of a model, and the same script with its blocks as units."""

import msgspec
import pytest
import torch
from tests.pretend import fsdp_program
from torch import nn
from torch.distributed import fsdp
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from brimful import pretend
from brimful.pretend.sharding_units import blocks_of, by_block
from brimful.pretend.unit_values import ByBlock
from brimful.show.pretend import pretend_summary, word_of
from brimful.show.units import unit_ways

pytestmark = pytest.mark.torch

WORLD, TOKENS = 8, 64


def of_fsdp2(model, *, blocks):
    mesh = torch.distributed.init_device_mesh("cuda", (WORLD,))
    for layer in model.layers if blocks else ():
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    return model.to_empty(device="cuda")


def of_fsdp1(model, *, blocks):
    policy = ModuleWrapPolicy({fsdp_program.Block}) if blocks else None
    model = model.to_empty(device="cuda")
    return fsdp.FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True)


def trained(shard, *, blocks=False, gpu="h100-80gb"):
    with pretend.gpu(gpu, world_size=WORLD) as run:
        with torch.device("meta"):
            model = fsdp_program.Model()
        model = shard(model, blocks=blocks)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            ids = torch.zeros(TOKENS, dtype=torch.int64, device="cuda")
            nn.functional.cross_entropy(model(ids), ids).backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


def test_blocks_are_the_largest_row_of_modules_of_one_class():
    with torch.device("meta"):
        model = fsdp_program.Model()
    found = blocks_of(model)
    assert (found.path, len(found.modules)) == ("layers.*", fsdp_program.DEPTH)
    assert found.num_parameters == sum(x.numel() for x in model.layers.parameters())
    assert blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))) is None


@pytest.mark.parametrize("shard", [of_fsdp2, of_fsdp1])
def test_a_script_with_its_blocks_as_units_takes_what_one_that_says_so_does(shard):
    unit = trained(shard).report().whole_unit
    num = sum(x.numel() for x in fsdp_program.Model().parameters())
    assert (unit.num_parameters, unit.all_parameters) == (num, num)
    assert (unit.block, unit.path, unit.num_blocks) == ("Block", "layers.*", fsdp_program.DEPTH)
    assert unit.gathered_bytes >= 4 * num
    assert unit.reduced_bytes >= 4 * num
    said = trained(shard, blocks=True)
    with by_block():
        changed = trained(shard)
    assert said.report().whole_unit is changed.report().whole_unit is None
    assert changed.peak_allocated_bytes == said.peak_allocated_bytes


def test_what_is_at_once_is_told_and_what_its_blocks_would_save_at_most():
    run = trained(of_fsdp2)
    report = run.report(budget_bytes=run.peak_allocated_bytes // 2)
    facts = {fact.label: fact.text for fact in pretend_summary(report, ["run.py"]).facts}
    words = facts["units"]
    assert words.startswith("one FSDP unit holds 12.6M of 12.6M parameters: ")
    assert "fully_shard on each Block (layers.*) before that saves at most " in words
    really = run.peak_allocated_bytes - trained(of_fsdp2, blocks=True).peak_allocated_bytes
    assert 0 < really <= report.whole_unit.most_saved_bytes
    assert not unit_ways(report)


def test_what_would_fit_is_told_of_a_script_that_is_tight_too():
    run = trained(of_fsdp2)
    most = run.report().reserved.simulated_peak_reserved_bytes
    every = (run.report(budget_bytes=most * share // 100) for share in range(100, 50, -2))
    tight = next(report for report in every if word_of(report) == "tight")
    told = ByBlock(simulated_peak_reserved_bytes=1, word="fits")
    unit = msgspec.structs.replace(tight.whole_unit, by_block=told)
    report = msgspec.structs.replace(tight, whole_unit=unit)
    facts = {fact.label: fact.text for fact in pretend_summary(report, ["run.py"]).facts}
    assert "fully_shard on each Block (layers.*)" in facts["would fit"]
