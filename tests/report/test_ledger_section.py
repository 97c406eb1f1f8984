"""The waterfall: its bars are the ledger's peaks; it is left out where those are not the plan's."""

import re

import msgspec

from brimful.cost.estimate import estimate
from brimful.report.ledger_section import ledger_section
from brimful.search.ledger import ledger
from brimful.units import format_bytes
from brimful.values.plan import PLAN_SCHEMA, Plan
from samples import make_cluster, make_job, make_strategy

CLUSTER = make_cluster("cuda", usable_bytes=2**33)


def plan(**changes):
    job = make_job(precision="bf16", seq_len=256)
    strategy = make_strategy(micro_batch=4, activation_checkpointing="full", loss_chunks=4)
    strategy = msgspec.structs.replace(strategy, **changes)
    made = estimate(job, CLUSTER, strategy)
    return Plan(schema=PLAN_SCHEMA, job=job, cluster=CLUSTER, strategy=strategy, estimate=made)


def test_there_is_a_bar_for_the_naive_run_and_one_per_switch():
    made = plan()
    rows = ledger(made.job, made.cluster, made.strategy)
    page = ledger_section(made)
    assert page.count('class="bar-row"') == 1 + len(rows)
    for row in rows:
        assert format_bytes(row.peak_after_bytes) in page
        assert f'<span class="bar-name">{row.switch}</span>' in page


def test_no_bar_is_wider_than_its_track():
    for bar in ledger_section(plan()).split('class="bar-row"')[1:]:
        widths = [float(width) for width in re.findall(r"width:([\d.]+)%", bar)]
        assert 0 < sum(widths) <= 100.01


def test_what_a_switch_takes_away_and_what_it_adds_look_different():
    assert 'class="part saved"' in ledger_section(plan())
    mixed = plan()
    job = msgspec.structs.replace(mixed.job, precision="bf16-mixed")
    made = estimate(job, CLUSTER, mixed.strategy)
    other = msgspec.structs.replace(mixed, job=job, estimate=made)
    first = ledger(job, CLUSTER, mixed.strategy)[0]
    tone = "saved" if first.saved_bytes > 0 else "added"
    assert f'class="part {tone}"' in ledger_section(other)


def test_a_plan_of_another_version_has_no_ledger():
    made = plan()
    other = msgspec.structs.replace(made.estimate, predicted_peak_allocated_bytes=1)
    assert ledger_section(msgspec.structs.replace(made, estimate=other)) is None


def test_a_job_without_a_formula_has_no_ledger():
    assert ledger_section(msgspec.structs.replace(plan(), estimate=None)) is None
    documents = msgspec.structs.replace(plan().job, packing="documents")
    assert ledger_section(msgspec.structs.replace(plan(), job=documents)) is None
