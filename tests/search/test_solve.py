"""The search finds what a slow and obvious one finds, and looks at every way of checkpointing."""

import itertools
import math
import random
from functools import partial

import msgspec
import pytest

from brimful.cost.estimate import allocatable_bytes, estimate
from brimful.cost.formula import missing_formula
from brimful.cost.stage_site import site_of
from brimful.cost.stage_time import behind
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.gpus import load_cluster
from brimful.models.config import experts_of, read_config
from brimful.search.pins import Pins
from brimful.search.rows import PIECES, STAGES
from brimful.search.solve import solve, tabulate
from brimful.search.space import CHUNKS, grids, needs
from brimful.search.table import TIE
from brimful.techniques.parallel.stages import Split, blocks_of_stages, stages_of_device
from brimful.techniques.runnable import check_strategy
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy

NUM_SPACES = 200
NUM_WIDE = 100
NUM_ROWS = 40
MAX_SHARE = 2
"""Trying everything on many devices takes long."""
FREE = Pins(micro_batch=None, activation_checkpointing=None, loss_chunks=None)
ALONE = FREE._replace(pp=1)
"""Without pipelines, which are not evaluated one by one."""
LORA = make_adapter()
QLORA = make_adapter(base="nf4-double", dtype="fp32")
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
WIDTHS = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 48}
BESIDE = {"full": {}, "lora": {"adapter": LORA}, "qlora": {"adapter": QLORA}}


def draw(number):
    """Draw a job, and a device with more memory than it needs."""
    rng = random.Random(number)  # noqa: S311 - cases, not secrets
    architecture = rng.choice(("llama", "gpt2"))
    layers = rng.randint(2, 4)
    depth = {"num_hidden_layers": layers} if architecture == "llama" else {"n_layer": layers}
    job = make_job(
        architecture,
        model=make_model(architecture, **depth, vocab_size=rng.choice((97, 2048))),
        precision=rng.choice(("bf16", "bf16-mixed", "fp32")),
        optimizer=rng.choice(("adamw", "sgd")),
        seq_len=rng.choice((24, 64, 128)),
        global_batch=rng.choice((1, 2, 3, 4, 6)),
    )
    if job.precision == "bf16" and rng.random() < 0.5:
        job = msgspec.structs.replace(job, method="lora", adapter=LORA)
    return job, make_cluster("cuda", usable_bytes=2**40, calibrated=rng.random() < 0.5)


def drawn_widely(number):
    """Draw a job of any technique that has a shipped formula, what is fixed of it, and a device."""
    rng = random.Random(f"wide {number}")  # noqa: S311 - cases, not secrets
    architecture = rng.choice(
        ("llama", "mistral", "qwen2", "qwen3", "phi3", "mixtral", "qwen3_moe")
    )
    sizes = {**HEADS, **EXPERTS, **WIDTHS, "num_hidden_layers": rng.randint(2, 4)}
    model = read_config("drawn", {"model_type": architecture, "vocab_size": 512, **sizes})
    method = rng.choice(("full", "full", "lora", "qlora"))
    precisions = ("bf16", "bf16-mixed", *(("fp32", "bf16-master") if method == "full" else ()))
    job = make_job(
        model=model,
        method=method,
        precision=rng.choice(precisions),
        optimizer=rng.choice(("adamw", "adamw", "sgd", "adamw-8bit", "adafactor", "muon")),
        seq_len=rng.choice((24, 64)),
        global_batch=rng.choice((2, 4)),
        **BESIDE[method],
    )
    offload = rng.choice((None, None, "optimizer"))
    return job, FREE._replace(pp=1, offload=offload), rng.choice((1, 2, 4, 8))


def limited(cluster, rows, share):
    """Return a cluster whose devices some of the strategies fit, and what fits them."""
    peaks = [row[1] for row in rows]
    limit = int(0.9 * min(peaks) + share * (max(peaks) - 0.9 * min(peaks)))
    spare = cluster.device.usable_bytes - allocatable_bytes(cluster.device)
    device = msgspec.structs.replace(cluster.device, usable_bytes=limit + spare)
    return msgspec.structs.replace(cluster, device=device), limit


def on_devices(job, cluster, num_devices):
    """Give each of several devices the batch that one had, at most 2, and an H100's links."""
    if num_devices == 1:
        return job, cluster
    cluster = msgspec.structs.replace(
        cluster,
        device=msgspec.structs.replace(cluster.device, name="h100-80gb"),
        num_devices=num_devices,
        devices_per_node=num_devices,
        link=load_cluster("2xh100-80gb", memory_limit_bytes=None).link,
    )
    batch = min(job.global_batch, MAX_SHARE) * num_devices
    return msgspec.structs.replace(job, global_batch=batch), cluster


def every(job, cluster, **fixed):
    """Estimate every strategy by itself: (strategy, peak, seconds)."""
    ways = strategies(job, cluster.num_devices, **fixed)
    return [row for one in ways if runs(job, one) and (row := tried(job, cluster, one))]


def tried(job, cluster, strategy):
    """Estimate one strategy; nothing where no formula covers it."""
    if missing_formula(job, strategy, cluster.device):
        return None
    made = estimate(job, cluster, strategy)
    return strategy, made.predicted_peak_allocated_bytes, made.predicted_step_s


def strategies(job, num_devices, **fixed):
    """Yield every strategy for devices of one node, whether this version runs it or not."""
    layers = job.model.num_layers
    kinds = ["none", *(f"{k}:{n}" for k in ("full", "selective") for n in range(1, layers + 1))]
    for tp in (n for n in range(1, num_devices + 1) if num_devices % n == 0):
        share = job.global_batch * tp // num_devices
        for micro_batch in (n for n in range(1, share + 1) if share % n == 0):
            chunks = (n for n in CHUNKS if micro_batch * job.seq_len % n == 0)
            ways = spreads(num_devices // tp, accumulates=micro_batch < share)
            degrees = [n for n in range(1, num_devices + 1) if num_devices % n == 0]
            parted = degrees if tp == 1 and experts_of(job.model).num_experts else [1]
            for number, kind, spread, ep in itertools.product(chunks, kinds, ways, parted):
                yield make_strategy(
                    micro_batch=micro_batch,
                    loss_chunks=number,
                    activation_checkpointing=kind,
                    tp=tp,
                    ep=ep,
                    **spread,
                    **fixed,
                )


def rows_of(job, num_devices):
    """Yield every pipeline that a search may choose, whether this version runs it or not."""
    divisors = [n for n in range(1, num_devices + 1) if num_devices % n == 0]
    orders = [("1f1b", 1), ("gpipe", 1), *(("interleaved", n) for n in STAGES)]
    for pp, tp, (order, stages) in itertools.product(divisors[1:], divisors, orders):
        num_groups = num_devices // (pp * tp)
        if num_devices % (pp * tp) or pp * stages > job.model.num_layers:
            continue
        share = job.global_batch // num_groups
        for micro_batch in (n for n in range(1, share + 1) if share % n == 0):
            if order == "gpipe" and share // micro_batch >= pp:
                continue  # 1F1B keeps no more
            way = {"pp": pp, "tp": tp, "pp_schedule": order, "stages_per_device": stages}
            way |= {"micro_batch": micro_batch, "accumulate": "hold"}
            yield from filled(job, way, num_groups, num_devices // tp)


def filled(job, way, num_groups, near):
    """Yield the ways of checkpointing, of cutting the loss and of sharding."""
    layers = job.model.num_layers
    split = Split(way["pp"], way["pp_schedule"], way["stages_per_device"], ())
    blocks = [len(each) for each in blocks_of_stages(job.model, split)]
    most = max(sum(blocks[i] for i in stages_of_device(split, d)) for d in range(split.pp))
    quarters = {-(-most * n // 4) for n in (1, 2, 3)} - {most}
    kinds = ["none", *(f"{k}:{n}" for k in ("full", "selective") for n in {*quarters, layers})]
    chunks = (n for n in PIECES if way["micro_batch"] * job.seq_len % n == 0)
    shared = [(0, 1), *((zero, n) for zero in (1, 2, 3) for n in {near, num_groups} if n > 1)]
    for number, kind, (zero, shards) in itertools.product(chunks, kinds, shared):
        if num_groups % shards == 0:
            yield make_strategy(
                **way,
                loss_chunks=number,
                activation_checkpointing=kind,
                zero=zero,
                dp_shard=shards,
                dp_replicate=num_groups // shards,
            )


def runs(job, strategy):
    try:
        return check_strategy(job, strategy) == strategy
    except (InputError, UnsupportedError):
        return False


def spreads(num_devices, *, accumulates):
    """List the ways of spreading over devices, holding gradients where there are several."""
    if num_devices == 1:
        return [{}]
    ways = [{"zero": 0, "dp_replicate": num_devices}]
    ways += [
        {"zero": zero, "dp_shard": n, "dp_replicate": num_devices // n}
        for zero in (1, 2, 3)
        for n in range(2, num_devices + 1)
        if num_devices % n == 0
    ]
    held = [way | {"accumulate": "hold"} for way in ways] if accumulates else []
    return ways + held


def best_of(rows, limit):
    """Pick the fastest that fits, ties to the smaller peak; else the one that is short of least."""
    fitting = [row for row in rows if row[1] <= limit]
    if not fitting:
        return min(rows, key=lambda row: row[1])
    return min(fitting, key=lambda row: (round(math.log(row[2]) / math.log1p(TIE)), row[1]))


def check_it_is_best(found, rows, limit):
    """Compare what a search found with the best of all rows, whose peak is returned."""
    _, peak, seconds = best_of(rows, limit)
    made = found.plan.estimate
    assert made.predicted_peak_allocated_bytes == peak
    # Where nothing fits, strategies that are short of the same are equally good.
    ties = [seconds] if peak <= limit else [row[2] for row in rows if row[1] == peak]
    assert any(made.predicted_step_s == pytest.approx(each) for each in ties)
    return peak


@pytest.mark.few(2)
@pytest.mark.parametrize("number", range(NUM_SPACES))
def test_the_optimum_is_that_of_trying_everything(number):
    """Every other space is one of 2 to 8 devices."""
    rng = random.Random(-number)  # noqa: S311 - cases, not secrets
    job, cluster = on_devices(*draw(number), rng.randint(2, 8) if number % 2 else 1)
    rows = every(job, cluster)
    cluster, limit = limited(cluster, rows, rng.random())
    found = solve(job, cluster, ALONE, attention="sdpa", objective="time")
    check_it_is_best(found, rows, limit)
    assert found.record.num_considered == len(rows)
    assert found.record.num_fitting == sum(row[1] <= limit for row in rows)


@pytest.mark.few(only=["0", "33", "97"])  # of experts, packed with adapters, dense on 2 x 2
@pytest.mark.parametrize("number", range(NUM_WIDE))
def test_the_optimum_of_any_technique_is_that_of_trying_everything(number):
    """Dense and of experts, adapters on plain and on packed bases, every optimizer, offloaded."""
    job, pins, num_devices = drawn_widely(number)
    card = make_cluster("cuda", usable_bytes=2**40, name="h100-80gb")  # whose host's link is known
    job, cluster = on_devices(job, card, num_devices)
    rows = every(job, cluster, offload=pins.offload or "none")
    if not rows:
        with pytest.raises(UnsupportedError):
            solve(job, cluster, pins, attention="sdpa", objective="time")
        return
    cluster, limit = limited(cluster, rows, random.Random(number).random())  # noqa: S311
    found = solve(job, cluster, pins, attention="sdpa", objective="time")
    check_it_is_best(found, rows, limit)
    assert found.record.num_considered == len(rows)


@pytest.mark.few(1)
@pytest.mark.parametrize("number", range(NUM_ROWS))
def test_the_best_pipeline_is_that_of_trying_every_one(number):
    """Bounds leave out none that could be the best."""
    rng = random.Random(number)  # noqa: S311 - cases, not secrets
    pp, wide = rng.choice((2, 4)), rng.choice((1, 2))
    model = make_model(num_hidden_layers=rng.randint(4, 8), vocab_size=rng.choice((97, 512)))
    job = make_job(
        model=model,
        precision=rng.choice(("bf16", "bf16-mixed", "fp32")),
        global_batch=wide * rng.choice((4, 8)),
        seq_len=rng.choice((24, 64)),
    )
    _, cluster = on_devices(job, draw(number)[1], pp * wide)
    ways = [s for s in rows_of(job, pp * wide) if s.pp == pp and runs(job, s)]
    rows = [row for row in map(partial(tried, job, cluster), ways) if row]
    cluster, limit = limited(cluster, rows, rng.uniform(-0.1, 1.0))
    pins = FREE._replace(pp=pp)
    found = solve(job, cluster, pins, attention="sdpa", objective="time")
    peak = check_it_is_best(found, rows, limit)
    assert found.plan.strategy.pp == pp
    assert found.record.rows[0].fits == (peak <= limit)
    assert found.record.num_considered <= len(rows)


@pytest.mark.few(6)
@pytest.mark.parametrize("number", range(12))
def test_nothing_that_is_shown_to_fit_is_faster_than_the_plan(number):
    job, cluster = draw(number)
    space = grids(job, FREE, attention="sdpa", cluster=cluster)
    peaks = tabulate(job, cluster, "sdpa", space).peak_bytes  # test_grid: those of estimates
    cluster, _ = limited(cluster, [(None, peak) for peak in peaks.tolist()], number / 12)
    found = solve(job, cluster, FREE, attention="sdpa", objective="time")
    best, *others = found.record.rows
    assert all(best.step_s <= each.step_s * (1 + TIE) for each in others if each.fits)
    assert all(best.step_s <= each.step_s * (1 + TIE) for each in found.frontier)


@pytest.mark.few(1)
@pytest.mark.parametrize(("num_devices", "precision"), [(2, "bf16-mixed"), (4, "bf16")])
def test_the_optimum_may_cut_every_matrix(num_devices, precision):
    """Of a model that is mostly vocabulary, which is gathered whole where it is sharded alone."""
    job = make_job(
        model=make_model(num_hidden_layers=2, vocab_size=2048),
        precision=precision,
        seq_len=12,
        global_batch=2,
    )
    job, cluster = on_devices(job, draw(0)[1], num_devices)
    rows = every(job, cluster)
    assert {strategy.tp for strategy, _, _ in rows} == {1, 2}, "its key heads are two"
    assert {strategy.zero for strategy, _, _ in rows if strategy.tp == 2} == (
        {0} if num_devices == 2 else {2, 3}
    )
    found = solve(job, cluster, ALONE, attention="sdpa", objective="memory")
    assert found.record.num_considered == len(rows)
    best, peak, _ = min(rows, key=lambda row: row[1])
    assert found.plan.estimate.predicted_peak_allocated_bytes == peak
    assert found.plan.strategy.tp == best.tp == 2


def test_the_least_memory_is_that_of_trying_everything():
    job, cluster = draw(1)
    found = solve(job, cluster, FREE, attention="sdpa", objective="memory")
    smallest = min(row[1] for row in every(job, cluster))
    assert found.plan.estimate.predicted_peak_allocated_bytes == smallest


@pytest.mark.parametrize("pinned", ["none", "full", "full:1", "selective", "selective:1"])
def test_what_is_pinned_is_kept(pinned):
    job, cluster = make_job(), make_cluster("cuda")
    pins = FREE._replace(activation_checkpointing=pinned)
    found = solve(job, cluster, pins, attention="sdpa", objective="time")
    assert found.plan.strategy.activation_checkpointing == pinned


def test_without_a_selective_profile_there_is_no_selective_strategy():
    job, cluster = make_job(), make_cluster("cuda")
    found = solve(job, cluster, FREE, attention="eager", objective="time")
    kinds = {row.strategy.activation_checkpointing.partition(":")[0] for row in found.record.rows}
    assert "selective" not in kinds
    chunks = [n for m in (1, 2, 4) for n in CHUNKS if m * job.seq_len % n == 0]
    assert found.record.num_considered == len(chunks) * (1 + job.model.num_layers)


@pytest.mark.parametrize(("micro_batch", "tp"), [(1, None), (4, 2)])
def test_a_pinned_micro_batch_is_searched_only_where_it_divides_what_a_device_sees(micro_batch, tp):
    job, cluster = on_devices(make_job(global_batch=4), make_cluster("cuda", usable_bytes=2**40), 2)
    found = solve(
        job, cluster, ALONE._replace(micro_batch=micro_batch), attention="sdpa", objective="time"
    )
    assert {found.space.strategy(row).micro_batch for row in range(len(found.space.table.tp))} == {
        micro_batch
    }
    assert tp is None or set(found.space.table.tp) == {tp}
    with pytest.raises(InputError, match="does not divide"):
        solve(job, cluster, ALONE._replace(micro_batch=3), attention="sdpa", objective="time")


def test_a_search_asks_for_what_flops_are_counted_by():
    """Whatever is pinned, a step's FLOPs are those of plain blocks on one device."""
    cluster = msgspec.structs.replace(make_cluster("cuda"), num_devices=8)
    found = set(needs(make_job(), [Pins(2, "full", 4)], "sdpa", cluster))
    assert found
    for need in found:
        assert need._replace(gathers=False, recompute="full", body="plain") in found


def test_nothing_that_is_traced_is_said_and_no_crash():
    assert not len(tabulate(make_job(), make_cluster(), "sdpa", []).peak_bytes)


def test_pipelines_on_a_machine_that_was_not_measured_have_no_time():
    job = make_job(global_batch=8)
    strategy = make_strategy(pp=2, micro_batch=1)
    cluster = make_cluster(kernels="cuda", memory_bytes_per_s=0.0)
    assert math.isnan(behind(site_of(job, strategy, cluster.device), cluster).update)
