"""Ways out are plans of their own: each is searched anew, on what it names."""

import msgspec
import pytest

from brimful.errors import InputError, UnsupportedError
from brimful.hardware.datasheets import datasheets
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search.gains import Search
from brimful.search.larger_clusters import NODES, cards_for, with_gpu
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.search.tries import Tried, either, held, same_strategy, searched_anew
from brimful.search.ways_out import ways_out
from brimful.units import GIB, format_bytes
from samples import make_job


def asked(model, gpus, pins=None, **changes):
    """Search a job that does not fit; return its plan and its ways out."""
    fields = {"seq_len": 4096, "global_batch": 16, "precision": "bf16-mixed", **changes}
    job = make_job(model=load_model(model), **fields)
    cluster = load_cluster(gpus, memory_limit_bytes=None)
    search = Search(cluster, pins or Pins(), "sdpa", "time")
    plan = solve(job, cluster, search.pins, attention="sdpa", objective="time").plan
    assert not plan.estimate.fits
    return plan, list(ways_out(plan, searched_anew(search), held))


def test_a_recipe_that_fits_with_the_host_is_a_way_out_where_the_host_suffices():
    job = make_job(
        model=load_model("qwen3-8b"), seq_len=2048, global_batch=16, precision="bf16-mixed"
    )
    card = load_cluster("rtx-4090", memory_limit_bytes=None)
    known = msgspec.structs.replace(card, host_ram_bytes=120 * GIB)
    pins = Pins(micro_batch=1, loss_chunks=1, pp=1)  # so that each of many searches is short
    search = Search(known, pins, "sdpa", "time")
    plan = solve(job, known, pins, attention="sdpa", objective="time").plan
    way = fitting(ways_out(plan, searched_anew(search), as_found))["--precision bf16"]
    assert way.solution.plan.strategy.offload != "none"


def test_what_lacks_the_same_host_is_no_way_out():
    """Four other cards were named, and asked about said NO for the very host that was short."""
    job = make_job(
        model=load_model("qwen3-8b"), seq_len=2048, global_batch=4, precision="bf16-mixed"
    )
    cards = load_cluster("4xrtx-4090", memory_limit_bytes=None)
    known = msgspec.structs.replace(cards, host_ram_bytes=100 * GIB)
    pins = Pins(micro_batch=1, loss_chunks=1, offload="optimizer", zero=3, tp=1, pp=1)
    plan = solve(job, known, pins, attention="sdpa", objective="time").plan
    assert plan.estimate.fits
    assert plan.estimate.host.fits is False
    found = list(ways_out(plan, searched_anew(Search(known, pins, "sdpa", "time")), as_found))
    for way in found:
        if way.short_bytes <= 0:
            assert way.solution.plan.estimate.host.fits is not False, way.words
    assert not any("of any known GPU" in way.words for way in found)


def test_larger_cards_are_of_the_same_maker():
    """Whoever has a Radeon has ROCm: a smaller card of another maker was all that was told."""
    for gpu, maker in (("rx-9070-xt", "AMD"), ("rtx-4060-ti-16gb", "NVIDIA")):
        plan = plan_on(load_cluster(gpu, memory_limit_bytes=None), "qwen3-1.7b")
        found = fitting(
            ways_out(
                plan, searched_anew(Search(plan.cluster, Pins(pp=1), "sdpa", "time")), as_found
            )
        )
        card = next(name for name in found if name.startswith("--gpus ") and "x" not in name[7:9])
        assert datasheets()[card.removeprefix("--gpus ")].maker == maker


def as_found(tried):
    return tried


def plan_on(cluster, model="llama-3.1-8b"):
    job = make_job(model=load_model(model), seq_len=4096, precision="bf16-mixed")
    return solve(job, cluster, Pins(pp=1), attention="sdpa", objective="time").plan


def fitting(ways):
    return {way.words.partition(" would fit")[0]: way for way in ways if way.short_bytes <= 0}


def test_cards_that_are_offered_have_units_for_the_recipe():
    """Two A100 were offered to a job in fp8, which they refuse."""
    named = {p: {d.name for d in cards_for(make_job(precision=p))} for p in ("bf16-mixed", "fp8")}
    assert "a100-40gb" in named["bf16-mixed"] - named["fp8"]
    assert {"l4", "h100-80gb"} <= named["fp8"]


def test_what_another_strategy_makes_fit_is_not_called_short():
    """Under the strategy of the full plan LoRA was "still short"; the plan for it fits."""
    _, ways = asked("llama-3.1-8b", "h100-80gb", Pins(micro_batch=1, loss_chunks=1, pp=1))
    found = fitting(ways)["--method lora"]
    assert found.solution.plan.job.method == "lora"
    assert found.solution.plan.estimate.fits
    assert not found.is_exact
    assert "only adapters of rank 16 train: it changes what is learnt" in found.words


@pytest.mark.long
def test_more_of_the_same_gpu_is_a_way_out():
    """70B at 32k on 8 H100s: only B200s were offered. 16 hold it if NCCL takes little, 32 do."""
    plan, ways = asked("llama-3.1-70b", "8xh100-80gb", seq_len=32768)
    found = fitting(ways)
    assert "--gpus 8xb200" in found
    assert "--gpus 2x8xh100-80gb" not in found
    more = found["--gpus 4x8xh100-80gb"]
    assert more.is_exact
    cluster = more.solution.plan.cluster
    assert (cluster.num_nodes, cluster.num_devices, cluster.device) == (4, 32, plan.cluster.device)
    assert cluster == load_cluster("4x8xh100-80gb", memory_limit_bytes=None)


@pytest.mark.long
def test_moments_that_cannot_be_shared_give_way_to_those_that_can():
    """8-bit AdamW is whole on every device; with AdamW and ZeRO-3 eight of them hold 8B."""
    pins = Pins(pp=1, tp=1)
    plan, ways = asked("llama-3.1-8b", "8xa100-40gb", pins, optimizer="adamw-8bit")
    assert plan.estimate.predicted_peak_allocated_bytes - plan.estimate.usable_bytes > 20 * GIB
    found = fitting(ways)["--optimizer adamw"].solution.plan
    assert (found.job.optimizer, found.strategy.zero) == ("adamw", 3)


def test_what_is_learnt_stays_before_it_changes_and_the_least_short_come_last():
    _, ways = asked("llama-3.2-3b", "rtx-4090", Pins(micro_batch=1, loss_chunks=1, pp=1))
    fits = [way for way in ways if way.short_bytes <= 0]
    assert list(ways[: len(fits)]) == fits
    assert [way.is_exact for way in fits] == sorted((way.is_exact for way in fits), reverse=True)
    for exact in (True, False):
        costs = [way.cost for way in fits if way.is_exact == exact]
        assert costs == sorted(costs)
    short = [way.short_bytes for way in ways[len(fits) :]]
    assert short == sorted(short)
    assert all("would still be short by" in way.words for way in ways[len(fits) :])


@pytest.mark.few(2)
@pytest.mark.parametrize("fits_from", [128, 512, 2048])
def test_sequences_are_halved_until_they_fit_if_the_shortest_do(fits_from):
    seen = []

    def find(job, _cluster):
        seen.append(job.seq_len)
        return Tried(int(job.seq_len > fits_from), None, None)

    plan = plan_on(load_cluster("t4", memory_limit_bytes=None), "smollm2-360m")
    words = [way.words for way in ways_out(plan, find, as_found)]
    assert f"--seq-len {fits_from} would fit (it changes what is learnt)" in words
    halves = [length for length in (2048, 1024, 512, 256) if length >= fits_from]
    assert seen[: 1 + len(halves)] == [128, *halves]
    seen.clear()
    tell = ways_out(plan, lambda job, _: seen.append(job.seq_len) or Tried(1, None, None), as_found)
    list(tell)
    assert seen[:2] == [128, 4096], "where the shortest do not fit none between is tried"


@pytest.mark.parametrize(("need_gib", "is_said"), [(200, False), (300, True)])
def test_that_no_gpu_holds_it_is_not_said_beside_one_that_may(need_gib, is_said):
    """A B300 has 260 GiB, and nothing is known of its kernels."""

    def find(_job, cluster):
        if cluster.name == "b300":
            raise UnsupportedError("nothing is known of its kernels")
        return Tried(need_gib * GIB - cluster.device.usable_bytes, None, None)

    plan = plan_on(load_cluster("t4", memory_limit_bytes=None), "smollm2-360m")
    plan = msgspec.structs.replace(plan, estimate=None)
    words = [way.words for way in ways_out(plan, find, as_found)]
    assert any("no single known GPU" in each for each in words) is is_said


def test_where_no_other_card_was_simulated_the_least_with_room_is_named():
    """27.21 GiB that were simulated on a 4090 were said to be too much for every known GPU."""

    def find(_job, _cluster):
        raise UnsupportedError("the time is over")

    plan = plan_on(load_cluster("2xrtx-4090", memory_limit_bytes=None), "smollm2-360m")
    plan = msgspec.structs.replace(plan, estimate=None)
    assert not list(ways_out(plan, find, as_found)), "nothing was simulated at all"
    (way,) = ways_out(plan, find, as_found, simulated_bytes=27 * GIB)
    assert way.words.startswith("--gpus 2xrtx-5090 may fit: 27.00 GiB of tensors, simulated here")
    assert way.short_bytes > 0, "it is not told as what fits"


def test_what_stays_alone_decides_where_it_is_too_much():
    """70B with AdamW: 140 GiB a device of what stays. No sequence is short enough for that."""
    seen = []

    def find(job, _cluster):
        seen.append(job)
        return Tried(0, 1.0, None)

    cluster = load_cluster("8xh100-80gb", memory_limit_bytes=None)
    plan = plan_on(cluster, "llama-3.1-70b")
    ways = ways_out(plan, find, as_found)
    assert [next(ways).is_exact for _ in range(3)] == [True, True, False]
    assert all(job.seq_len == plan.job.seq_len for job in seen)


@pytest.mark.few(only=["t4-expected0", "2x8xt4-expected2"])
@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ("t4", ["2xt4", "4xt4", "8xt4", *(f"{num}x8xt4" for num in NODES)]),
        ("4xt4", ["8xt4", *(f"{num}x8xt4" for num in NODES)]),
        ("2x8xt4", [f"{num}x8xt4" for num in NODES[1:]]),
    ],
)
def test_more_gpus_are_tried_from_few_to_many(gpus, expected):
    cluster = load_cluster(gpus, memory_limit_bytes=None)
    seen = []

    def find(_job, cluster):
        seen.append(cluster)
        return Tried(1, None, None)

    list(ways_out(plan_on(cluster), find, as_found))
    tried = [one for one in seen if one.name == "t4" and one.num_devices > cluster.num_devices]
    tried = [one for place, one in enumerate(tried) if one not in tried[:place]]  # larger batches
    whole = [load_cluster(name, memory_limit_bytes=None) for name in expected]
    if cluster.num_nodes == 1:  # nobody has said that there are nodes, nor what is between them
        whole = [msgspec.structs.replace(one, network="") for one in whole]
    assert tried == whole
    assert {3, 5, 6, 7} < {*NODES}, "the fewest are told, not the next power of two"


def test_a_limit_is_of_this_card_and_not_of_a_larger_one():
    cluster = load_cluster("h100-80gb", memory_limit_bytes=40 * GIB)
    seen = []

    def find(_job, cluster):
        seen.append(cluster)
        return Tried(1, None, None)

    list(ways_out(plan_on(cluster), find, as_found))
    limits = {(one.name == "h100-80gb", one.memory_limit_bytes) for one in seen}
    assert limits == {(True, 40 * GIB), (False, 0)}


def test_what_something_else_takes_of_this_card_it_takes_of_another():
    device = load_cluster("h200", memory_limit_bytes=None).device
    cluster = load_cluster("h100-80gb", memory_limit_bytes=40 * GIB)
    cluster = msgspec.structs.replace(cluster, beside_share=0.25)
    assert with_gpu(cluster, device).memory_limit_bytes == int(0.75 * device.usable_bytes)


def test_what_cannot_tell_gives_way_to_what_can():
    plan = plan_on(load_cluster("t4", memory_limit_bytes=None))

    def refuse(_job, _cluster):
        raise UnsupportedError("no formula")

    def cannot(_job, _cluster):
        raise InputError("does not divide")

    simulated = same_strategy(plan, lambda *_: 7)
    assert either(refuse, simulated)(plan.job, plan.cluster).short_bytes == 7
    with pytest.raises(InputError):
        either(cannot, simulated)(plan.job, plan.cluster)
    larger = load_cluster("2xt4", memory_limit_bytes=None)
    with pytest.raises(UnsupportedError, match="as many devices"):
        simulated(plan.job, larger)


def test_states_that_have_no_room_are_not_searched(monkeypatch):
    """70B on sixteen 24 GB cards: every search of more of them ran to its end, 40 s of CPU."""
    job = make_job(model=load_model("llama-3.1-70b"), seq_len=4096, precision="bf16-mixed")
    few = load_cluster("2x8xrtx-4090", memory_limit_bytes=None)
    pins = Pins(zero=3, tp=1, pp=1, micro_batch=1, loss_chunks=1, activation_checkpointing="full")
    job = msgspec.structs.replace(job, global_batch=16)
    whole = solve(job, few, pins, attention="sdpa", objective="time").plan.estimate
    monkeypatch.setattr("brimful.search.tries.solve", None)
    tried = searched_anew(Search(few, pins, "sdpa", "time"))(job, few)
    assert tried.is_bound
    assert 0 < tried.short_bytes < whole.predicted_peak_allocated_bytes - whole.usable_bytes


def test_what_keeps_least_says_what_a_whole_search_would_lack():
    job = make_job(
        model=load_model("llama-3.1-8b"), seq_len=131072, global_batch=8, precision="bf16"
    )
    card = load_cluster("2xa100-40gb", memory_limit_bytes=None)
    whole = solve(job, card, Pins(pp=1), attention="sdpa", objective="time").plan.estimate
    tried = searched_anew(Search(card, Pins(pp=1), "sdpa", "time"))(job, card)
    assert tried.short_bytes == whole.predicted_peak_allocated_bytes - whole.usable_bytes > 0
    assert tried.solution.space.objective == "memory", "all was not searched"


@pytest.mark.parametrize(("floor_gib", "expected"), [(2, 3), (-2, 5), (-100, 1)])
def test_what_more_nodes_lack_ends_where_two_of_them_say_so(floor_gib, expected):
    """a + b / n: with a floor above what there is no number of nodes is enough."""
    seen = []

    def find(_job, cluster):
        if cluster.name != "t4" or cluster.num_nodes == 1:
            raise InputError("not asked")
        seen.append(cluster.num_nodes)
        return Tried(round((floor_gib + 20 / cluster.num_nodes) * GIB), None, None)

    plan = plan_on(load_cluster("8xt4", memory_limit_bytes=None))
    plan = msgspec.structs.replace(plan, job=msgspec.structs.replace(plan.job, global_batch=32 * 8))
    list(ways_out(plan, find, as_found))
    assert len(seen) == expected, seen


def test_the_job_s_own_batch_is_told_beside_a_larger_one_on_fewer_nodes():
    """A larger batch on twelve nodes took the place of sixteen that learn the same."""

    def find(job, cluster):
        if cluster.name != "t4" or cluster.num_nodes < (4 if job.global_batch == 16 else 3):
            raise InputError("not here")
        return Tried(0, 1.0, None)

    plan = plan_on(load_cluster("8xt4", memory_limit_bytes=None))
    plan = msgspec.structs.replace(plan, job=msgspec.structs.replace(plan.job, global_batch=16))
    words = [way.words for way in ways_out(plan, find, as_found)]
    assert any(each.startswith("--gpus 4x8xt4 would fit") for each in words)
    assert any("(the fewest nodes that do)" in each for each in words)
    assert any(each.startswith("--gpus 3x8xt4 --global-batch 24 would fit") for each in words)


def test_what_would_fit_says_how_much_it_takes_of_what_there_is():
    pins = Pins(micro_batch=1, loss_chunks=1, pp=1, activation_checkpointing="full")
    _, ways = asked("llama-3.2-3b", "rtx-4090", pins)
    for way in ways:
        if way.short_bytes <= 0:
            used, most = way.solution.plan.estimate.told_peak
            assert way.peak == f"{format_bytes(used)} of {format_bytes(most)}"
            assert f"would fit, {way.peak}" in way.words
            assert used <= most
