"""The ledger is a chain of estimates: it starts at the naive run, ends at the plan, adds up."""

import itertools

import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.errors import UnsupportedError
from brimful.models.config import parameter_count
from brimful.report.ledger import naive_cells
from brimful.search import ledger as module
from brimful.search.alternatives import alternatives
from brimful.search.ledger import ledger, naive_point
from brimful.search.offers import offers
from brimful.units import format_bytes
from brimful.values.plan import StepTime
from samples import make_adapter, make_cluster, make_job, make_strategy

CLUSTER = make_cluster("cuda", usable_bytes=2**33)


def plan(**changes):
    return make_strategy(
        **{"micro_batch": 4, "activation_checkpointing": "full", "loss_chunks": 4, **changes}
    )


def test_a_plan_that_is_the_naive_run_has_no_rows():
    job = make_job(precision="fp32")
    strategy = make_strategy(attention="eager")
    assert naive_point(job, strategy) == (job, strategy)
    assert ledger(job, CLUSTER, strategy) == ()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw-8bit"])
def test_every_row_goes_on_where_the_last_one_ended(precision, optimizer):
    job = make_job(precision=precision, optimizer=optimizer, seq_len=64)
    rows = ledger(job, CLUSTER, plan())
    naive = estimate(*(naive_point(job, plan())[:1]), CLUSTER, naive_point(job, plan()).strategy)
    last = estimate(job, CLUSTER, plan())
    assert rows[0].peak_before_bytes == naive.predicted_peak_allocated_bytes
    assert rows[-1].peak_after_bytes == last.predicted_peak_allocated_bytes
    assert rows[-1].step_after_s == last.predicted_step_s
    for row, following in itertools.pairwise(rows):
        assert row.peak_after_bytes == following.peak_before_bytes
        assert row.step_after_s == following.step_before_s
    total = naive.predicted_peak_allocated_bytes - last.predicted_peak_allocated_bytes
    assert sum(row.saved_bytes for row in rows) == total


def test_the_jobs_own_switches_come_first_and_are_labelled():
    job = make_job(precision="bf16", optimizer="sgd", seq_len=64)
    rows = ledger(job, CLUSTER, plan())
    assert [row.switch for row in rows[:2]] == ["precision", "optimizer"]
    assert [row.owner for row in rows] == ["job", "job", "planner", "planner", "planner"]
    assert (rows[0].before, rows[0].after) == ("fp32", "bf16")


def test_what_saves_memory_and_time_comes_first_then_most_bytes_per_second():
    job = make_job(precision="bf16", seq_len=256)
    rows = [row for row in ledger(job, CLUSTER, plan()) if row.owner == "planner"]
    assert rows[0].switch == "attention"
    assert rows[0].added_s <= 0 < rows[0].saved_bytes
    for row in rows:
        for rival in row.rivals:
            free = row.saved_bytes >= 0 and row.added_s <= 0
            slower = rival.saved_bytes / rival.added_s <= row.saved_bytes / max(row.added_s, 1e-12)
            assert free or slower or rival.saved_bytes <= 0


def test_where_rates_are_unknown_the_bytes_decide():
    unknown = msgspec.structs.replace(CLUSTER.device, memory_bytes_per_s=0.0)
    cluster = msgspec.structs.replace(CLUSTER, device=unknown)
    rows = ledger(make_job(precision="bf16", seq_len=256), cluster, plan())
    planned = [row for row in rows if row.owner == "planner"]
    assert all(row.added_s is None for row in rows)
    assert all(v.saved_bytes <= row.saved_bytes for row in planned for v in row.rivals)


def test_reasons_name_the_items_that_changed_most():
    rows = ledger(make_job(precision="bf16", seq_len=256), CLUSTER, plan())
    saved = next(row.reason for row in rows if row.switch == "attention")
    assert saved.startswith("saved activations -")
    recompute = next(row.reason for row in rows if row.switch == "checkpointing")
    assert "saved activations -" in recompute


def test_what_a_switch_has_no_estimate_without_comes_before_it():
    """Adapters with written-out attention were not traced: one row said both."""
    job = make_job(precision="bf16", method="lora", adapter=make_adapter(), seq_len=64)
    rows = ledger(job, CLUSTER, make_strategy())
    assert [row.switch for row in rows][:3] == ["precision", "attention", "method"]
    assert not any("alone is unknown" in row.reason for row in rows)


def test_a_base_of_few_bits_is_frozen_first_and_then_rounded():
    made = {offer.allow: offer.job for offer in offers(make_job(precision="bf16", seq_len=64))}
    job = made["--method qlora"]
    rows = {row.switch: row for row in ledger(job, CLUSTER, make_strategy())}
    assert rows["method"].after.startswith("lora, ")
    assert rows["base"].after.startswith("qlora, ")


def test_switches_that_no_formula_tells_apart_are_one_row_that_says_why(monkeypatch):
    job = make_job(precision="bf16", method="lora", adapter=make_adapter(), seq_len=64)
    real = module.predict

    def traced(point, cluster):
        is_fused = point.strategy.attention == "sdpa"
        is_known = is_fused == (point.job.method == "lora")
        return real(point, cluster) if is_known else "not traced here"

    monkeypatch.setattr(module, "predict", traced)
    rows = ledger(job, CLUSTER, make_strategy())
    merged = next(row for row in rows if "method" in row.switch)
    assert merged.switch == "method + attention"
    assert merged.owner == "both"
    assert "method alone is unknown: not traced here" in merged.reason
    assert (
        rows[-1].peak_after_bytes
        == estimate(job, CLUSTER, make_strategy()).predicted_peak_allocated_bytes
    )


def test_a_naive_run_without_a_formula_is_unknown_and_not_guessed(monkeypatch):
    job = make_job(precision="bf16", seq_len=64)
    start = naive_point(job, plan())
    real = module.predict
    monkeypatch.setattr(
        module, "predict", lambda p, c: "no formula covers it" if p == start else real(p, c)
    )
    first, *others = ledger(job, CLUSTER, plan())
    assert (first.peak_before_bytes, first.saved_bytes, first.added_s) == (None, None, None)
    assert "no formula covers it" in first.reason
    assert all(row.saved_bytes is not None for row in others)
    states = 16 * parameter_count(job.model).total
    assert first.least_before_bytes == states  # fp32, with gradients and two moments
    assert {row.least_before_bytes for row in others} == {None}
    told = naive_cells(msgspec.structs.replace(first, usable_bytes=states // 2))
    assert told[2] == f"> {format_bytes(states)}"
    assert f"short by {format_bytes(states - states // 2)} by these alone" in told[-1]


def test_what_was_not_traced_here_is_no_advice_to_trace_it(monkeypatch):
    def refuse(*_args):
        raise UnsupportedError(
            "x has no formula; brimful plan and brimful simulate trace it instead"
        )

    monkeypatch.setattr(module, "estimate", refuse)
    assert module.predict(naive_point(make_job(), plan()), CLUSTER) == "not traced here"


def test_a_plan_without_a_formula_is_refused():
    with pytest.raises(UnsupportedError, match="no formula"):
        ledger(make_job(packing="documents"), CLUSTER, plan())


def test_sharding_is_entered_stage_by_stage():
    end = make_strategy(zero=3, dp_shard=4, dp_replicate=2, accumulate="hold")
    names = [move.switch for move in module._many_devices(end)]
    assert names == ["model parallel", "zero=1", "zero=2", "zero=3", "accumulation"]
    start = naive_point(make_job(), end)
    assert start.strategy.dp_replicate == 8
    point = start
    for move in module._many_devices(end):
        point = module.apply(point, move)
    assert point.strategy == msgspec.structs.replace(end, attention="eager")


def test_alternatives_change_one_switch_each_and_say_what_killed_them():
    job = make_job(precision="bf16", seq_len=256)
    made = estimate(job, CLUSTER, plan())
    tight = msgspec.structs.replace(
        CLUSTER.device,
        usable_bytes=made.predicted_peak_allocated_bytes + 2**33 - made.usable_bytes + 1024,
    )
    found = alternatives(job, msgspec.structs.replace(CLUSTER, device=tight), plan())
    assert {other.setting for other in found} >= {
        "attention=eager", "activation_checkpointing=none", "loss_chunks=1", "micro_batch=2",
    }  # fmt: skip
    for other in found:
        field, value = other.setting.split("=")
        assert str(getattr(other.strategy, field)) == value
        assert msgspec.structs.replace(other.strategy, **{field: getattr(plan(), field)}) == plan()
    plain = next(other for other in found if other.setting == "activation_checkpointing=none")
    assert not plain.fits
    assert "short by" in plain.words
    assert "saved activations" in plain.words
    smaller = next(other for other in found if other.setting == "micro_batch=2")
    assert smaller.fits
    assert smaller.words.startswith("fits, ")


def test_every_part_of_a_steps_time_has_its_words():
    assert set(module._TIME_PARTS) == set(StepTime.__struct_fields__)


def test_a_chain_goes_on_to_the_first_run_that_has_an_estimate(monkeypatch):
    """Stages 1 and 2 are one row where the first has none, and it says why."""

    def estimated(job, cluster, strategy):
        if strategy.zero == 1:
            raise UnsupportedError("zero=1 has no formula here")
        return estimate(job, cluster, strategy)

    monkeypatch.setattr(module, "estimate", estimated)
    job = make_job(precision="bf16-master", global_batch=8, seq_len=64)
    cluster = msgspec.structs.replace(CLUSTER, num_devices=4, devices_per_node=4)
    rows = ledger(job, cluster, make_strategy(micro_batch=1, zero=3, dp_shard=4))
    names = [row.switch for row in rows]
    assert "zero=3" in names
    reason = rows[names.index("zero=1 + zero=2")].reason
    assert "zero=1 alone is unknown: zero=1 has no formula here" in reason
