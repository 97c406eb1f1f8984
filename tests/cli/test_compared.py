"""What stands behind a plan's answer: what its question asks to be compared with."""

import re
from argparse import Namespace
from types import SimpleNamespace

import pytest

from brimful.cli import plan
from brimful.cli.compared import compared_facts
from brimful.errors import OutOfTimeError
from brimful.show.compared import alone_fact
from brimful.show.summary import Fact
from brimful.text.terminal import is_silenced
from brimful.values.strategy import Strategy
from samples import make_job

SIZES = ("--seq-len", 2048, "--global-batch", 64, "--no-proof", "--loss-chunks", 1, "--pp", 1)
"""Of searches that are short: what is compared hangs on no chunks and no pipeline."""


def test_an_optimizer_on_the_host_is_told_where_it_is_much_faster(brimful):
    """Tensor parallel over 8 V100 was the fastest that fit, at half the speed of ZeRO-3 beside."""
    asked = ("plan", "llama-2-7b", "--gpus", "8xv100-16gb", "--precision", "fp16-mixed")
    said = brimful(*asked, *SIZES)
    told = " ".join(said.out.split())
    assert "tensor parallel 8" in told
    assert "faster --offload optimizer" in told
    assert "where each host has" in told


def test_what_it_is_compared_with_may_run_out_of_time(brimful, monkeypatch):
    """A plan was thrown away then, which stood."""
    asked = ("plan", "llama-2-7b", "--gpus", "8xv100-16gb", "--precision", "fp16-mixed")

    def search(args, budget):
        if args.offload == "optimizer":
            raise OutOfTimeError("over")
        return whole(args, budget)

    whole = plan.search
    monkeypatch.setattr(plan, "search", search)
    said = brimful(*asked, *SIZES)
    assert said.code == 0
    assert "faster --offload" not in " ".join(said.out.split())


def test_nothing_is_said_of_a_host_where_what_fits_is_fast(brimful):
    said = brimful("plan", "smollm2-135m", "--gpus", "8xv100-16gb", "--seq-len", 512, "--no-proof")
    assert "--offload" not in said.out


def test_adapters_leave_no_room_that_is_worth_a_search(brimful, monkeypatch):
    """What fits of a base in 4 bits is slow, and its optimizer's state is a thousandth of it."""
    searched = []

    def search(args, budget):
        searched.append(args.offload)
        return whole(args, budget)

    whole = plan.search
    monkeypatch.setattr(plan, "search", search)
    asked = ("plan", "llama-3.1-8b", "--gpus", "4060", "--method", "qlora", "--lora-rank", 1)
    said = brimful(*asked, "--seq-len", 512, "--global-batch", 32, "--no-proof")
    assert "FITS" in said.out
    assert searched == [None]


def test_other_numbers_of_gpus_are_laid_beside_the_cheapest(brimful):
    asked = ("plan", "smollm2-135m", "--gpus", "4xl40s", "--objective", "cost", "--tokens", "10M")
    said = brimful(*asked, "--seq-len", 512, "--global-batch", 64, "--no-proof")
    told = " ".join(said.out.split())
    counts = re.search(r"by count (.*?) assumed", told)[1].split("; ")
    assert [each.partition(":")[0] for each in counts] == ["4", "1"]
    assert all(" and 0.0" in each or " and 0.1" in each for each in counts)


def test_nothing_is_told_of_one_node_in_the_middle_of_an_answer(brimful, monkeypatch):
    """Six lines of tracing stood there."""
    asked = ("plan", "smollm2-135m", "--gpus", "2x2xh100-80gb", "--network", "ethernet-10")
    quiet = []

    def search(args, budget):
        assert not args.json
        quiet.append(is_silenced())
        return whole(args, budget)

    whole = plan.search
    monkeypatch.setattr(plan, "search", search)
    told = " ".join(brimful(*asked, *SIZES).out.split())
    assert quiet == [False, True]
    assert re.search(r"[1-9]\d?% of it waits for the network", told)
    assert re.search(r"network ethernet-10: by ib-ndr-400 [\d.]+ x as fast", told)
    assert "one node alone" in told


@pytest.mark.parametrize(
    ("fits", "word", "is_said"),
    [(True, None, True), (True, "fits", True), (True, "no", False), (False, None, False)],
)
def test_no_network_is_advised_to_what_does_not_fit(monkeypatch, fits, word, is_said):
    told = Fact("network", "by another as fast again")
    monkeypatch.setattr("brimful.cli.compared._networks", lambda *_: (told,))
    for name in ("_by_count", "_offloaded", "_away", "_alone"):
        monkeypatch.setattr(f"brimful.cli.compared.{name}", lambda *_: ())
    found = SimpleNamespace(
        plan=SimpleNamespace(estimate=None),
        record=SimpleNamespace(rows=[SimpleNamespace(fits=fits)]),
    )
    proof = None if word is None else SimpleNamespace(word=word)
    assert compared_facts(Namespace(), found, None, proof) == ((told,) if is_said else ())


def test_why_several_nodes_are_more_than_as_many_times_as_fast():
    def solution(num_nodes, step_s, **changes):
        job = make_job()
        cluster = SimpleNamespace(num_nodes=num_nodes)
        strategy = Strategy(
            micro_batch=1, loss_chunks=1, attention="sdpa",
            **{"activation_checkpointing": "none"} | changes,
        )  # fmt: skip
        rows = (SimpleNamespace(step_s=step_s, fits=True),)
        return SimpleNamespace(
            plan=SimpleNamespace(job=job, cluster=cluster, strategy=strategy),
            record=SimpleNamespace(rows=rows),
        )

    several = solution(32, 1.0)
    lean = alone_fact(several, solution(1, 33.0, activation_checkpointing="full")).text
    assert re.search(r"32 are 33 x as fast, more than 32, for one node has all \d+ layers", lean)
    assert alone_fact(several, solution(1, 30.0)).text.endswith("so 32 are 30 x as fast")
