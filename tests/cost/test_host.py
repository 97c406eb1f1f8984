"""Host memory and checkpoints of the first rung, against what the trainer really saves."""

import re
from itertools import product

import msgspec
import pytest

from brimful.cost import host
from brimful.cost.estimate import estimate
from brimful.cost.saved import disk_bytes, pinned_bytes, saved_sizes
from brimful.errors import InputError
from brimful.hardware.cluster import check_cluster
from brimful.units import GIB, format_bytes
from brimful.values.strategy import data_parallel
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy

DDP, ZERO_1 = {"zero": 0, "dp_replicate": 8}, {"zero": 1, "dp_shard": 8}
ZERO_3 = {"zero": 3, "dp_shard": 8}
LARGE = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "vocab_size": 1000}
RECIPES = ("fp32", "bf16", "bf16-mixed", "bf16-master")
OPTIMIZERS = ("adamw", "adamw-foreach", "adamw-8bit", "sgd", "adafactor")


def cluster_of(kernels="cuda", *, num_devices=1, num_nodes=1, ram=0):
    return msgspec.structs.replace(
        make_cluster(kernels),
        num_devices=num_devices,
        num_nodes=num_nodes,
        devices_per_node=num_devices // num_nodes,
        host_ram_bytes=ram,
    )


def host_of(job=None, strategy=None, cluster=None):
    strategy = strategy or make_strategy()
    job = job or make_job(model=make_model(**LARGE), global_batch=2 * data_parallel(strategy))
    return estimate(job, cluster or cluster_of(), strategy).host


def adapted(**changes):
    job = make_job(**{k: v for k, v in changes.items() if k in {"precision", "weights"}})
    adapter = make_adapter(**{k: v for k, v in changes.items() if k in {"base", "dtype"}})
    return msgspec.structs.replace(job, method="lora", adapter=adapter)


def program_of(job):
    import torch
    from tests.train.programs import nudge

    from brimful.build.assemble import build_program

    program = build_program(job, make_strategy(), torch.device("cpu"))
    nudge(program, 1)
    return program


SAVED = {
    **{
        f"{precision} {optimizer}": make_job(precision=precision, optimizer=optimizer)
        for precision, optimizer in product(RECIPES, OPTIMIZERS)
    },
    "8-bit moments of large tensors": make_job(
        model=make_model(hidden_size=64, vocab_size=100), optimizer="adamw-8bit"
    ),
    "gpt2": make_job("gpt2"),
    "tied": make_job(model=make_model(tie_word_embeddings=True)),
    "adapters on a random base": adapted(precision="bf16"),
    "adapters on half of a base": adapted(precision="bf16-mixed", base="bf16"),
    "wide adapters": adapted(precision="bf16", dtype="fp32"),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", SAVED)
def test_what_is_saved_is_listed_tensor_by_tensor(name):
    from brimful.train.program_state import capture

    job = SAVED[name]
    tensors = capture(program_of(job), base_crc32=None).tensors
    real = sorted(tensor.nbytes for tensor in tensors.values())
    assert sorted(saved_sizes(job, make_strategy(), "cpu")) == real
    assert saved_sizes(job, None, "cpu") == saved_sizes(job, make_strategy(), "cpu")


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["fp32", "bf16-master"])
def test_a_checkpoint_takes_the_disk_that_it_is_said_to(tmp_path, precision):
    from tests.train.programs import progress

    from brimful.train.checkpoint import save_checkpoint
    from brimful.values.plan import PLAN_SCHEMA, Plan

    job, strategy, cluster = make_job(model=make_model(**LARGE)), make_strategy(), make_cluster()
    job = msgspec.structs.replace(job, precision=precision)
    predicted = estimate(job, cluster, strategy)
    plan = Plan(schema=PLAN_SCHEMA, job=job, cluster=cluster, strategy=strategy, estimate=predicted)
    folder = save_checkpoint(tmp_path, program_of(job), progress(plan, 1))
    real = sum(file.stat().st_size for file in folder.iterdir())
    assert predicted.host.predicted_checkpoint_bytes == pytest.approx(real, rel=0.01)


@pytest.mark.torch
def test_what_torch_writes_around_a_tensor_is_known():
    import io

    import torch

    for num in (0, 1, 63, 64, 65, 4096, 12345):
        file = io.BytesIO()
        torch.save(torch.zeros(num, dtype=torch.uint8), file)
        one, nothing = disk_bytes([num], num_shards=1), disk_bytes([], num_shards=1)
        assert 0 <= one - nothing - len(file.getvalue()) <= 1024


@pytest.mark.torch
def test_the_same_numbers_stand_in_the_trainer():
    from brimful.build import weight_files
    from brimful.train import settings

    assert host.NUM_KEPT == settings.NUM_KEPT
    assert host.NUM_EVAL_TOKENS == settings.NUM_EVAL_TOKENS
    assert host.PIECE_BYTES == weight_files.PIECE_BYTES


def test_pinned_blocks_are_powers_of_two():
    for size in (1, 2, 3, 1000, 1024, 1025):
        block = pinned_bytes([size])
        assert size <= block < 2 * size
        assert block.bit_count() == 1
    assert pinned_bytes([3, 5, 0]) == 4 + 8


@pytest.mark.parametrize("kernels", ["cpu", "cuda"])
@pytest.mark.parametrize("spread", [{}, DDP, ZERO_1, ZERO_3])
def test_items_sum_to_the_highest_phase_and_the_band_begins_there(kernels, spread):
    strategy = make_strategy(**spread)
    found = host_of(
        strategy=strategy, cluster=cluster_of(kernels, num_devices=data_parallel(strategy))
    )
    highest = max(phase.num_bytes for phase in found.phases)
    assert sum(item.num_bytes for item in found.items) == highest
    assert found.predicted_host_bytes.low == highest < found.predicted_host_bytes.high
    assert found.num_processes == data_parallel(strategy)
    assert {item.where for item in found.items} == {"host"}


def test_a_cpu_counts_its_devices_memory_once_and_a_gpu_never():
    job, strategy = make_job(model=make_model(**LARGE)), make_strategy()
    on_cpu = estimate(job, cluster_of("cpu"), strategy)
    items = {item.name: item.num_bytes for item in on_cpu.host.items}
    assert items[host.DEVICES] == on_cpu.predicted_peak_allocated_bytes
    on_gpu = host_of(job, strategy, cluster_of("cuda"))
    assert host.DEVICES not in {item.name for item in on_gpu.items}


def test_saving_in_the_background_copies_what_is_saved_once_per_process():
    job = make_job(model=make_model(**LARGE))
    on_cpu = host_of(job, cluster=cluster_of("cpu"))
    assert on_cpu.predicted_async_bytes == sum(saved_sizes(job, make_strategy(), "cpu"))
    on_gpu = host_of(job, cluster=cluster_of("cuda"))
    assert on_gpu.predicted_async_bytes == 0  # waiting for it takes the same copy
    spread = make_strategy(**DDP)
    spread_job = msgspec.structs.replace(job, global_batch=2 * 8)
    many = host_of(spread_job, spread, cluster_of("cuda", num_devices=8))
    copy = pinned_bytes(saved_sizes(spread_job, spread, "cuda"))
    assert many.predicted_async_bytes == pytest.approx(7 * copy, rel=1e-6)


def test_shards_copy_and_write_less_each_and_the_same_together():
    strategy = make_strategy(**ZERO_3)
    sharded = host_of(strategy=strategy, cluster=cluster_of(num_devices=8))
    alone = host_of()
    one, all_ = alone.predicted_checkpoint_bytes, sharded.predicted_checkpoint_bytes
    job = make_job(model=make_model(**LARGE))
    assert one < all_ < one + 8 * 2048 * len(saved_sizes(job, None, "cuda"))
    on_nodes = host_of(strategy=strategy, cluster=cluster_of(num_devices=8, num_nodes=4))
    assert on_nodes.num_processes == 2
    assert on_nodes.predicted_host_bytes.high < sharded.predicted_host_bytes.high


def test_stored_weights_are_read_a_piece_at_a_time():
    stored = make_job(model=make_model(**LARGE), weights="somewhere")
    random = make_job(model=make_model(**LARGE))
    more = [
        {phase.phase: phase.num_bytes for phase in host_of(job).phases}["load"]
        for job in (stored, random)
    ]
    assert 0 < more[0] - more[1] <= host.PIECE_BYTES


def test_it_fits_surely_perhaps_or_surely_not():
    """By what training takes, whatever saving and handing over take on top."""
    band, low = host_of().predicted_host_bytes, host_of().predicted_training_bytes
    high = low + band.high - band.low
    assert low < band.low
    given = (int(high) + 1, int(band.low) - 1, low - 1, 0)
    assert [host_of(cluster=cluster_of(ram=ram)).fits for ram in given] == [True, None, False, None]


def test_a_host_has_no_less_than_nothing():
    with pytest.raises(InputError, match="host_ram_bytes=-1"):
        check_cluster(cluster_of(ram=-1))


def test_a_host_that_has_too_little_for_saving_alone_fits_and_says_so(capsys):
    from brimful.cli.main import main

    asked = ("gpt2", "--gpus", "h100-80gb", "--host-memory", "1200MiB")
    assert main(["estimate", *asked]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("FITS")
    assert re.search(
        r"saving Brimful's own needs [\d.]+ GiB of the host's 1.17 GiB, training", told
    )


@pytest.mark.parametrize(("has", "code"), [("512MiB", 1), ("64GiB", 0)])
def test_a_host_that_is_too_small_is_said(capsys, has, code):
    from brimful.cli.main import main

    asked = ("gpt2", "--gpus", "h100-80gb", "--host-memory", has)
    assert main(["estimate", *asked, "-v"]) == code
    said = capsys.readouterr().out
    assert ("the host is short" in said) == bool(code)
    assert "Brimful's own needs" not in said  # of what is short altogether, or suffices
    assert "host memory" in said
    assert "checkpoint" in said


def test_the_headline_of_a_host_is_what_training_takes(capsys):
    import json

    from brimful.cli.main import main

    asked = ["estimate", "gpt2", "--gpus", "h100-80gb", "--offload", "optimizer"]
    asked += ["--host-memory", "2GiB"]
    assert main([*asked, "--json"]) == main(asked) == 1
    made, said = capsys.readouterr().out.split("\nNO ", 1)
    train = json.loads(made)["host"]["predicted_training_bytes"]
    told = " ".join(said.split())
    assert f"{format_bytes(train)} of 2.00 GiB, short by {format_bytes(train - 2 * GIB)}" in told
    assert "round pinned blocks up to powers of two" in told
    assert "Brimful's own takes" in told


def test_pinned_blocks_are_rounded_up_on_a_gpu_alone():
    strategy, job = make_strategy(offload="optimizer"), make_job(model=make_model(**LARGE))
    count = host.parameter_count(job.model).total
    held = {item.name: item.num_bytes for item in host_of(job, strategy).items}
    more = held["parameters"] - 4 * count  # as of gradients; of those on their way it is less
    assert 0 < 2 * more <= host.rounding_bytes(job, cluster_of(), strategy) < 3 * more
    assert host.rounding_bytes(job, cluster_of("cpu"), strategy) == 0


@pytest.mark.parametrize(
    ("offload", "zero", "num_bytes"), [("parameters", 3, 18), ("optimizer", 2, 16)]
)
def test_deepspeed_keeps_its_own_bytes_of_a_parameter_and_copies_none_to_save(
    offload, zero, num_bytes
):
    strategy = make_strategy(
        engine="deepspeed", zero=zero, dp_shard=4, offload=offload, accumulate="reduce-each"
    )
    job = make_job(model=make_model(**LARGE), global_batch=4, precision="bf16-master")
    found = host_of(job, strategy, cluster_of(num_devices=4))
    kept = {"parameters", "gradients", "optimizer state"}
    count = host.parameter_count(job.model).total
    held = sum(item.num_bytes for item in found.items if item.name in kept)
    assert held == pytest.approx(num_bytes * count, abs=4 * 4 * num_bytes)
    assert host.SAVING not in {item.name for item in found.items}
