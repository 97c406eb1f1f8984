"""Verdicts follow numbers: change a number and the verdict changes with it."""

import itertools
import runpy
import struct
from pathlib import Path

import msgspec
import pytest

from brimful.cost.states import held_bytes, states
from brimful.cost.update import CUDA, update_of
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model, parameter_count
from brimful.rules import base, calculators, devices, precision, table
from brimful.rules.base import TOLERANCE, compare, compare_range, stated, times, verdict_words
from brimful.rules.subject import (
    Subject,
    full,
    low_rank,
    peak,
    plain_strategy,
    run,
    run_many,
    saved_per_sequence,
    sheet_of,
)
from brimful.rules.table import RULES, check_rules
from brimful.values.job import plain_job
from brimful.values.strategy import Strategy
from samples import make_cluster, make_job

DOCS = Path(__file__).parents[2] / "docs"
IDS = (
    "full-70b-parts", "full-formula", "full-linear", "batch-doubles", "low-bit-partial",
    "weights-7b",
    "lora-saves", "lora-70b", "qlora-gigabyte", "qlora-time", "int8-compute", "qat", "moe-saves",
    "moe-equivalent",
    "moe-pitfalls", "amp-half", "amp-formula", "amp-speed", "amp-batch", "amp-bandwidth",
    "tensor-core-rate", "always-2x", "any-gpu", "code-change", "scale-init", "scale-dynamics",
    "unscale-clip", "fp32-islands", "fp16-underflow", "fp8-range", "bert-table", "gpt3-2.7b",
    "cnn-tf32", "long-seq", "ckpt-saves", "ckpt-costs", "gpt3-78", "offload-when", "flash",
    "flash-activations",
    "zero-123", "zero3-comm", "zero3-7b", "tp-when", "pp-when", "llama2-70b", "order", "budget",
    "infer-int8", "accelerate-4x", "deepspeed-zero2", "deepspeed-zero3", "eleuther",
    "korthikanti", "zero-paper-16", "times-1.5",
)  # fmt: skip


def subject(model="llama-3.2-1b", gpu="a100-40gb", seq_len=2048, **changes):
    job = plain_job(load_model(model), precision="bf16-mixed", seq_len=seq_len)
    job = msgspec.structs.replace(job, **changes)
    return Subject(job, load_cluster(gpu, memory_limit_bytes=None), plain_strategy(1))


@pytest.fixture(scope="module")
def checked():
    return {row.key: row for row in check_rules(subject())}


def found(key, given):
    return next(rule for rule in RULES if rule.key == key).check(given)


def test_every_rule_is_there_once():
    keys = [rule.key for rule in RULES]
    assert sorted(keys) == sorted(IDS)
    assert len(set(keys)) == len(keys)


def test_groups_stay_together():
    groups = [rule.group for rule in RULES]
    changes = sum(one != other for one, other in itertools.pairwise(groups))
    assert changes == len(set(groups)) - 1


def test_every_row_says_something(checked):
    for row in checked.values():
        assert row.statement, row.key
        assert row.ours, row.key
        assert row.why[:1].strip(), row.key
        assert not row.why.endswith("."), row.key  # the report adds it
        if row.verdict == "wrong" and row.error is not None:
            assert abs(row.error) > TOLERANCE, row.key


@pytest.mark.parametrize(
    ("says", "verdict"), [(100, "holds"), (109, "holds"), (91, "holds"), (112, "wrong")]
)
def test_a_figure_holds_within_the_tolerance(says, verdict):
    assert compare(says, 100, times, why="").verdict == verdict


def test_a_range_holds_within_and_errs_by_its_nearer_end():
    assert compare_range((1.3, 2.1), 1.7, times, why="").error == 0
    assert compare_range((1.3, 2.1), 4.2, times, why="").error == pytest.approx(-0.5)
    assert compare_range((1.3, 2.1), 1.0, times, why="").error == pytest.approx(0.3)


def test_a_verdict_is_spelled_with_its_error(checked):
    row = msgspec.structs.replace(checked["weights-7b"], verdict="wrong", error=0.378)
    assert verdict_words(row) == "wrong: 38 % too high"
    assert verdict_words(msgspec.structs.replace(row, error=base.FAR + 1)) == "wrong by far"
    assert verdict_words(msgspec.structs.replace(row, error=None)) == "wrong"
    assert verdict_words(msgspec.structs.replace(row, verdict="holds")) == "holds"


@pytest.mark.parametrize("error", [UnsupportedError, InputError])
def test_what_no_formula_covers_is_unknown_and_says_why(error, monkeypatch):
    def check(_subject):
        raise error("nobody knows")

    rule = RULES[0]._replace(check=check)
    monkeypatch.setattr(table, "RULES", (rule,))
    (row,) = check_rules(subject())
    assert (row.verdict, row.ours, row.why) == ("unknown", "unknown", "nobody knows")


def test_a_mistake_of_ours_is_not_hidden_as_unknown(monkeypatch):
    def check(_subject):
        return 1 / 0

    monkeypatch.setattr(table, "RULES", (RULES[0]._replace(check=check),))
    with pytest.raises(ZeroDivisionError):
        list(check_rules(subject()))


def test_a_model_without_formulas_still_has_its_counts():
    rows = {row.key: row for row in check_rules(subject("gpt-oss-20b", "h200"))}
    assert rows["amp-half"].verdict == "unknown"
    assert "no formula" in rows["amp-half"].why
    assert rows["weights-7b"].verdict == "holds"
    assert "gpt-oss-20b" in rows["moe-saves"].why


def test_this_machine_has_no_datasheet_and_says_so():
    here = Subject(make_job(), make_cluster(), plain_strategy(1))
    with pytest.raises(UnsupportedError, match="no datasheet"):
        sheet_of(here)


def test_estimates_behind_the_figures_are_those_of_estimate():
    given = subject()
    job = full(given, "fp32")
    found_here = found("accelerate-4x", given)
    assert f"{peak(run(given, job)) / 2**30:.4g} GiB" in found_here.ours
    assert held_bytes(job) == sum(states(job, update_of(job, CUDA)))
    assert held_bytes(job) == 16 * parameter_count(job.model).total


def test_weights_of_a_small_model_are_its_parameters_bytes(checked):
    num = parameter_count(load_model("llama-3.2-1b")).total
    assert checked["weights-7b"].says.startswith(f"{4 * num / 2**30:.4g} GiB")


def test_the_verdict_on_sixteen_bytes_hangs_on_the_recipe():
    """ZeRO's 16 B per parameter: exact for mixed recipes, twice too much for pure bf16."""
    assert found("zero-paper-16", subject()).verdict == "holds"
    pure = found("zero-paper-16", subject(precision="bf16"))
    assert (pure.verdict, pure.error) == ("wrong", 1.0)


def test_the_verdict_on_a_larger_batch_hangs_on_the_gpu():
    large = found("amp-batch", subject("gpt2", "a100-80gb", 1024))
    assert large.verdict in {"holds", "wrong"}
    small = found("amp-batch", subject("llama-3.1-8b", "t4", 2048))
    assert small.verdict == "not checkable here"


def test_the_largest_micro_batch_fits_and_the_next_does_not():
    given = subject("gpt2", "a100-40gb", 1024)
    largest = precision._largest(given, full(given, "bf16-mixed"))

    def fits(micro_batch):
        job = msgspec.structs.replace(full(given, "bf16-mixed"), global_batch=micro_batch)
        return run(given, job, micro_batch=micro_batch).fits

    assert fits(largest)
    assert not fits(largest + 1)


def test_offload_hangs_on_what_fits():
    fits, misses = (
        found("offload-when", subject(gpu=g, model=m, precision="bf16"))
        for g, m in (("a100-80gb", "llama-3.2-1b"), ("a100-80gb", "llama-3.1-70b"))
    )
    assert "fits without" in fits.ours
    assert "does not fit" in misses.ours
    assert fits.verdict == misses.verdict == "holds"
    assert found("offload-when", subject("llama-3.1-8b", "a100-40gb")).verdict == "wrong"


def test_activations_matter_beside_flash_attention_where_they_are_much_of_the_peak():
    """By their share: what a long text saves, and what a short one does beside the states."""
    assert found("flash-activations", subject(seq_len=2048)).verdict == "wrong"
    assert found("flash-activations", subject(seq_len=128)).verdict == "holds"
    told = found("flash-activations", subject("gpt2", "t4", 1024))
    assert told.verdict == "not checkable here"


def test_flash_is_not_judged_where_it_does_not_run():
    assert found("flash", subject("gpt2", "t4", 1024)).verdict == "not checkable here"
    assert found("flash", subject()).error is not None


def test_saved_bytes_are_those_of_one_more_sequence():
    """Read off 64 sequences; the peak of 128 has as many more."""
    given = subject()
    job = full(given, "bf16")
    one = saved_per_sequence(given, job)
    wide = [
        peak(run(given, msgspec.structs.replace(job, global_batch=n), micro_batch=n))
        for n in (64, 128)
    ]
    assert 0.5 * (wide[1] - wide[0]) / 64 < one < (wide[1] - wide[0]) / 64
    assert saved_per_sequence(given, job, activation_checkpointing="full") < 0.2 * one


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_several_devices_are_those_of_the_estimate_or_unknown(stage):
    given = subject()
    job = full(given, "bf16-mixed")
    made = run_many(given, job, zero=stage, dp_shard=8)
    assert peak(made) < peak(run_many(given, job, dp_replicate=8))


def test_an_estimate_that_ignores_other_devices_is_refused(monkeypatch):
    from brimful.rules import subject as module

    given = subject()
    alone = run(given, full(given, "bf16-mixed"))
    monkeypatch.setattr(module, "estimate", lambda *_: alone)
    with pytest.raises(UnsupportedError, match="no formula for 8 devices"):
        run_many(given, full(given, "bf16-mixed"), zero=3, dp_shard=8)


def test_what_each_stage_shards_is_the_papers_table():
    """Rajbhandari et al. 2020, figure 1: 120 GB to 31.4, 16.6 and 1.9 on 64 devices (7.5B)."""
    given = subject()
    shares = [devices.sharded_state(given, stage, 64) for stage in (1, 2, 3)]
    assert shares == pytest.approx([120 / 31.4, 120 / 16.6, 120 / 1.9], rel=0.02)


@pytest.mark.parametrize(
    ("mantissa_bits", "exponent_bias", "has_infinity", "largest"),
    [(3, 7, False, 448), (2, 15, True, 57344)],
)
def test_largest_numbers_of_fp8_are_those_of_torch(
    mantissa_bits, exponent_bias, has_infinity, largest
):
    made = precision.largest_number(
        mantissa_bits=mantissa_bits, exponent_bias=exponent_bias, has_infinity=has_infinity
    )
    assert made == largest


def test_fp16_rounds_as_ieee_754():
    assert precision.fp16(1e-8) == 0
    assert precision.fp16(precision.FP16_TINY) == precision.FP16_TINY
    assert precision.fp16(precision.FP16_TINY / 2) == 0
    assert precision.fp16(1 + precision.FP16_HALF_ULP) == 1
    assert struct.unpack("<e", struct.pack("<e", 65504))[0] == 65504


def test_calculators_are_the_formulas_of_their_sources():
    """The GPT-3 175B row of Korthikanti et al. 2022, table 2: h 12288, a 96, s 2048, L 96, b 1."""
    assert calculators.accelerate_bytes(10) == 160
    assert calculators.deepspeed_zero2_bytes(800, num_devices=8) == 3400
    assert calculators.deepspeed_zero3_bytes(800, largest_layer=100, num_devices=8) == 2200
    one = calculators.korthikanti_bytes(
        seq_len=2048, batch=1, hidden=12288, num_heads=96, num_layers=1
    )
    assert one == 2048 * 12288 * (34 + 80)


def test_the_largest_layer_is_the_embedding_of_a_small_llama():
    model = load_model("llama-3.2-1b")
    assert calculators.largest_layer(subject()) == model.vocab_size * model.hidden_size


def test_stated_verdicts_keep_what_they_are_given():
    made = stated("holds", says="a", ours="b", why="c")
    assert (made.verdict, made.error) == ("holds", None)


def test_the_subject_is_the_plainest_strategy():
    assert plain_strategy(2) == Strategy(
        micro_batch=2, activation_checkpointing="none", loss_chunks=1, attention="sdpa"
    )


def test_the_page_of_the_rules_is_up_to_date():
    page = runpy.run_path(str(DOCS / "generate_rules.py"))["page"]()
    assert (DOCS / "rules-of-thumb.md").read_text("utf-8") == page, (
        "run python docs/generate_rules.py"
    )
    for key in IDS:
        assert f"#### {key}\n" in page


def test_what_sharding_costs_is_of_what_the_job_trains():
    """Without it adapters' gradients alone are exchanged, with it the base is gathered twice."""
    whole = subject("llama-3.1-8b", "l40s")
    adapted = whole._replace(job=low_rank(whole, "bf16-mixed", "lora"))
    of_all, of_some = found("zero3-comm", whole), found("zero3-comm", adapted)
    assert "1.5 x: parameters" in of_all.why
    assert "far more than 1.5 x" in of_some.why
    assert float(of_some.ours.split()[0]) > float(of_all.ours.split()[0])


def test_what_four_bits_cost_falls_with_the_tokens_at_once():
    short, long = (found("qlora-time", subject(seq_len=n)) for n in (256, 4096))
    ratios = [float(each.ours.split(" x")[0]) for each in (short, long)]
    assert ratios[0] > ratios[1] > 1
    assert f"{times(ratios[0])} at seq_len=256" in long.why
