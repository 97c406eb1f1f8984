import msgspec
import pytest

from brimful.cost.money import Cost
from brimful.measure.verdict import judge
from brimful.report.text import WIDTH, estimate_tables, plain_lines, search_table, verdict_table
from brimful.report.words import (
    cluster_inputs,
    cost_words,
    plan_words,
    speed_words,
    spread_words,
    step_time_words,
)
from brimful.units import GIB, format_bytes
from brimful.values.plan import Band, PredictedReserved

from .sample import (
    HOSTILE,
    SIZES,
    make_measurement,
    make_search,
    make_simulation,
)


def estimate_lines(plan):
    return plain_lines(estimate_tables(plan.job, plan.cluster, plan.strategy, plan.estimate))


def search_lines(plan):
    usable_bytes = plan.estimate.usable_bytes
    table = search_table(make_search(plan), winner=plan.strategy, usable_bytes=usable_bytes)
    return plain_lines(table)


def test_nothing_is_wider_than_the_terminal(plan):
    verdict = judge(plan, make_simulation(plan), make_measurement(plan))
    lines = estimate_lines(plan) + search_lines(plan) + plain_lines(verdict_table(verdict))
    assert len(lines) > 40
    assert max(map(len, lines)) <= WIDTH


def test_long_names_are_folded_and_not_cut(plan):
    name = "m" * 250
    job = msgspec.structs.replace(
        plan.job, model=msgspec.structs.replace(plan.job.model, name=name)
    )
    lines = plain_lines(estimate_tables(job, plan.cluster, plan.strategy, plan.estimate))
    assert max(map(len, lines)) <= WIDTH
    assert "".join(line.strip() for line in lines).count("m" * 250) == 1


def test_every_input_item_and_assumption_is_shown(plan):
    text = "\n".join(estimate_lines(plan))
    for field in (*plan.job.__struct_fields__, *plan.strategy.__struct_fields__):
        assert f"{field}=" in text
    for name, size in SIZES.items():
        assert name in text
        assert format_bytes(size) in text
    assert "second = 2 (because)" in text
    assert "2.00 s (1.80 s to 2.30 s)" in text


def test_markup_in_names_is_text(plan):
    assert "[red]" in "\n".join(estimate_lines(plan))
    assert "[red]" in "\n".join(search_lines(plan))
    assert "alert" in HOSTILE


def test_a_rung_that_was_not_climbed_is_a_dash(plan):
    lines = plain_lines(verdict_table(judge(plan, None, None)))
    peak = next(line for line in lines if line.startswith("peak allocated"))
    assert peak.split()[4:] == ["-", "-", "-", "-"]
    assert "not simulated: brimful simulate on its plan does" in " ".join(lines[:2])


def test_what_does_not_fit_has_one_total(plan):
    """Reserved and process are of a card without end; where the replay ends stands apart."""
    replayed = PredictedReserved(
        allocator="", capacity_bytes=78 * GIB, firm_bytes=77 * GIB, limit_bytes=None,
        predicted_peak_reserved_bytes=77 * GIB, predicted_unhindered_bytes=150 * GIB,
        num_retries=1, short_bytes=GIB, predicted_process_bytes=78 * GIB,
    )  # fmt: skip
    made = msgspec.structs.replace(
        plan.estimate,
        predicted_reserved=replayed,
        predicted_process_bytes=Band(low=149.0 * GIB, high=200.0 * GIB),
    )
    text = " ".join(" ".join(estimate_lines(msgspec.structs.replace(plan, estimate=made))).split())
    assert "150.00 GiB of 78.00 GiB, had it all it asks for; it ends at 77.00 GiB" in text
    assert "a request lacks 1.00 GiB (replayed)" in text
    assert "151.00 GiB most likely, 149.00 GiB to 200.00 GiB" in text


def test_step_time_is_compared_with_the_prediction(plan):
    verdict = judge(plan, make_simulation(plan), make_measurement(plan))
    lines = plain_lines(verdict_table(verdict))
    assert lines[-1].endswith("+5.00 % vs pred")
    peak = next(line for line in lines if line.startswith("peak allocated"))
    assert peak.endswith("+0.10 %")


def test_rejected_strategies_say_their_shortfall(plan):
    lines = search_lines(plan)
    assert lines[0] == "Strategies: 120 considered, 40 fit"
    assert sum(line.startswith(">") for line in lines) == 1
    assert any("short by 512.00 MiB" in line for line in lines)


def test_unknown_rates_are_unknown(plan):
    estimate = msgspec.structs.replace(
        plan.estimate,
        predicted_step_s=None,
        predicted_step_band_s=None,
        predicted_step_time=None,
        predicted_process_bytes=None,
    )
    job = msgspec.structs.replace(plan.job, precision="bf16-mixed")
    lines = plain_lines(estimate_tables(job, plan.cluster, plan.strategy, estimate))
    assert "step time       unknown (the device's rates are unknown)" in lines
    assert "process         unknown" in lines
    assert any("bf16-mixed_rate=unknown" in line for line in lines)


def test_collectives_are_a_part_of_the_step_where_they_take_time(plan):
    assert "collectives" not in step_time_words(plan.estimate)
    parts = msgspec.structs.replace(plan.estimate.predicted_step_time, exposed_s=0.25)
    spread = msgspec.structs.replace(plan.estimate, predicted_step_time=parts)
    assert step_time_words(spread).endswith("collectives beyond that 250 ms")


def test_speed_is_shown_where_it_is_known(plan):
    assert speed_words(plan.estimate) == []
    known = msgspec.structs.replace(plan.estimate, tokens_per_s=5450.0, mfu=0.29, hfu=0.358)
    assert speed_words(known) == [
        ("speed", "5.45K tokens/s"),
        ("MFU, HFU", "29.0% without, 35.8% with recomputing"),
    ]


def test_costs_that_are_unknown_say_so():
    unknown = dict.fromkeys(("hours", "gpu_hours", "energy_kwh", "usd_per_gpu_hour", "usd"))
    cost = Cost(num_tokens=10**9, num_steps=1000, assumptions=(), **unknown)
    words = dict(cost_words(cost))
    assert words.pop("tokens") == "1B in 1000 steps"
    assert set(words.values()) == {"unknown"}


def test_the_rate_of_the_recipe_is_listed(plan):
    rates = msgspec.structs.replace(plan.cluster.device.matrix_flops_per_s, fp32=1e12, tf32=8e12)
    device = msgspec.structs.replace(
        plan.cluster.device, kernels="cuda", capability=8.0, matrix_flops_per_s=rates
    )
    cluster = msgspec.structs.replace(plan.cluster, device=device)
    assert dict(cluster_inputs(cluster, "tf32"))["tf32_rate"] == "8 TFLOP/s"
    assert [name for name, _ in cluster_inputs(cluster, "fp32") if name.endswith("_rate")] == [
        "fp32_rate",
        "memory_rate",
    ]


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrower_terminal_is_respected(plan, width):
    tables = estimate_tables(plan.job, plan.cluster, plan.strategy, plan.estimate)
    assert max(map(len, plain_lines(tables, width=width))) <= width


def test_how_many_devices_share_every_matrix_is_said(plan):
    def cut(**degrees):
        strategy = msgspec.structs.replace(plan.strategy, tp=2, **degrees)
        return spread_words(strategy), plan_words(msgspec.structs.replace(plan, strategy=strategy))

    short, words = cut(zero=3, dp_shard=4)
    assert short == "3 x 4 tp 2"
    assert "on 8 devices, every matrix cut over 2, " in words
    short, words = cut()
    assert short == "0 tp 2"
    assert "on 2 devices, every matrix cut over 2" in words
