"""The tree says nothing that the numbers do not: other numbers, other words."""

import msgspec
import pytest

from brimful.cli import defaults
from brimful.cost.estimate import allocatable_bytes, estimate
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search import offers as offered
from brimful.search.alternatives import alternatives
from brimful.search.decide import decide
from brimful.search.gains import Search, gains
from brimful.search.ledger import ledger
from brimful.search.offers import offers, plainest
from brimful.search.offloading import solve_offloading
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.units import GIB, format_bytes
from brimful.values.job import plain_job
from samples import make_adapter, make_cluster, make_job, make_strategy

FREE = Pins(micro_batch=None, activation_checkpointing=None, loss_chunks=None)
JOB = make_job(precision="bf16-mixed", seq_len=256)
PLAN = make_strategy(micro_batch=4, activation_checkpointing="full", loss_chunks=4)


def cluster_of(usable_bytes):
    cluster = make_cluster("cuda", usable_bytes=2**40)
    spare = 2**40 - allocatable_bytes(cluster.device)
    device = msgspec.structs.replace(cluster.device, usable_bytes=usable_bytes + spare)
    return msgspec.structs.replace(cluster, device=device)


def tree(usable_bytes):
    cluster = cluster_of(usable_bytes)
    rows = ledger(JOB, cluster, PLAN)
    return rows, decide(rows, alternatives(JOB, cluster, PLAN))


def peak():
    return estimate(JOB, cluster_of(2**40), PLAN).predicted_peak_allocated_bytes


def test_beside_a_base_in_8_bits_one_in_4_is_offered():
    adapter = make_adapter(base="int8")
    (offer,) = (
        each
        for each in offers(make_job(method="qlora", adapter=adapter))
        if each.allow.startswith("--base")
    )
    assert (offer.allow, offer.job.adapter.base) == ("--base nf4-double", "nf4-double")
    assert not [each for each in offers(offer.job) if "--base" in each.allow]


def test_every_depth_asks_once_and_the_last_one_ends_at_the_plan():
    rows, nodes = tree(peak())
    assert [node.depth for node in nodes] == list(range(len(rows) + 1))
    assert nodes[0].question == "Does the naive run fit?"
    assert format_bytes(peak()) in nodes[-1].answer


def test_answers_follow_the_numbers():
    rows, nodes = tree(peak())
    for row, node in zip(rows, nodes, strict=False):
        assert node.answer.startswith("Yes" if row.peak_before_bytes <= peak() else "No")
        assert format_bytes(abs(row.saved_bytes)) in node.action
        assert ("Your job says" in node.action) == (row.owner == "job")


def test_a_naive_run_that_fits_could_stop_there():
    _, nodes = tree(2**40)
    assert nodes[0].answer.startswith("Yes")
    assert "It could stop here" in nodes[1].action
    assert "Every other value of one switch fits" in nodes[-1].action


def test_what_a_full_plan_cannot_do_without_is_named_with_its_shortfall():
    _, nodes = tree(peak())
    assert nodes[-1].question == "Could it do with less?"
    assert "activation_checkpointing=none: short by" in nodes[-1].action


def test_where_nothing_fits_the_tree_ends_at_the_ways_out():
    _, nodes = tree(peak() - 1)
    assert "short by 1 B" in nodes[-1].answer
    assert "ways out" in nodes[-1].action


def test_a_plan_that_is_naive_has_no_tree():
    assert decide((), ()) == ()


def test_every_offer_changes_the_job_in_one_thing_and_none_that_it_has():
    assert [offer.allow for offer in offers(JOB)] == [
        "--optimizer adamw-8bit", "--method lora", "--method qlora", "--precision bf16",
    ]  # fmt: skip
    has = make_job(
        precision="bf16", optimizer="sgd", method="qlora", adapter=make_adapter(base="nf4-double")
    )
    assert offers(has) == ()


def test_a_frozen_base_in_fp32_is_offered_in_16_bits_before_all_else():
    wide = make_job(precision="bf16-mixed", method="lora", adapter=make_adapter(base="same"))
    first, *others = offers(wide)
    assert (first.allow, first.job.adapter.base) == ("--base bf16", "bf16")
    assert plainest([offer.allow for offer in (*others, first)])[0] == "--base bf16"
    assert "--base bf16" not in [offer.allow for offer in offers(first.job)]


def test_the_adapters_offered_are_the_command_lines_defaults():
    assert offered.LORA_RANK == defaults.LORA_RANK
    assert offered.LORA_ALPHA == defaults.LORA_RANK * defaults.LORA_ALPHA_PER_RANK
    assert offered.QLORA_BASE == defaults.QLORA_BASE
    assert offered.LORA_BASES == defaults.LORA_BASE


def test_every_gain_is_what_a_search_finds():
    cluster = cluster_of(2**40)
    found = solve(JOB, cluster, FREE, attention="sdpa", objective="time")
    gained = gains(found.plan, Search(cluster, FREE, "sdpa", "time"))
    assert len(gained) == 4
    for gain, offer in zip(gained, offers(JOB), strict=True):
        again = solve(offer.job, cluster, FREE, attention="sdpa", objective="time").plan
        assert gain.strategy == again.strategy
        assert gain.peak_bytes == again.estimate.predicted_peak_allocated_bytes
        assert gain.step_s == pytest.approx(again.estimate.predicted_step_s)


def test_what_may_be_allowed_is_searched_as_the_plan_is():
    """Pure bf16 holds here with something on the host alone."""
    card = load_cluster("rtx-5090", memory_limit_bytes=None)
    cluster = msgspec.structs.replace(card, host_ram_bytes=128 * GIB)
    job = plain_job(load_model("qwen3-4b"), precision="bf16-mixed", seq_len=2048)
    found = solve_offloading(job, cluster, FREE, attention="sdpa", objective="time")
    gained = {g.allow: g for g in gains(found.plan, Search(cluster, FREE, "sdpa", "time"))}
    told = gained["--precision bf16"]
    pure = next(each.job for each in offers(job) if each.allow == told.allow)
    here = solve(pure, cluster, FREE, attention="sdpa", objective="time").plan
    anywhere = solve_offloading(pure, cluster, FREE, attention="sdpa", objective="time").plan
    assert (here.estimate.fits, anywhere.estimate.fits) == (False, True)
    assert (told.fits, told.strategy) == (True, anywhere.strategy)


def test_a_permission_without_a_formula_is_unknown_and_says_why():
    cluster = make_cluster("cpu")
    job = make_job(precision="bf16", seq_len=64)
    found = solve(job, cluster, FREE, attention="sdpa", objective="time")
    gained = {g.allow: g for g in gains(found.plan, Search(cluster, FREE, "sdpa", "time"))}
    assert gained["--method lora"].peak_bytes is None
    assert gained["--method lora"].words.startswith("unknown: ")
    assert gained["--optimizer adamw-8bit"].fits


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_adapters_stay_what_they_are_in_another_recipe(method):
    job = make_job(method=method, precision="fp32", adapter=make_adapter(base="same"))
    other = offered.in_recipe(job, "bf16-mixed")
    assert (other.method, other.precision, other.adapter.base) == (method, "bf16-mixed", "bf16")
    assert offered.in_recipe(other, "fp32") == job
