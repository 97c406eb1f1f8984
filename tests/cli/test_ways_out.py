"""What would make a plan fit that does not, as it is told."""

import re
from argparse import Namespace

import msgspec
import pytest

from brimful.cli.main import parse
from brimful.cli.resolved import job_from
from brimful.cli.ways_out import (
    _counted,
    _freed,
    _in_time,
    _leaving,
    _offloading,
    _sending,
    _unrounded,
)
from brimful.cost.estimate import tensor_limit_bytes
from brimful.hardware.gpus import load_cluster
from brimful.models.config import read_config
from brimful.search.budget import Budget
from brimful.search.gains import Search
from brimful.search.offers import plainest
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.search.ways_out import _rate
from samples import TINY_LLAMA, make_job

MIB = 2**20
DEEP = {
    **TINY_LLAMA, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 24,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000,
    "max_position_embeddings": 8192,
}  # fmt: skip


def nearest(room_bytes, offload=None):
    """Search a job whose blocks keep 96 MiB beside what else it takes, in so much room."""
    job = make_job(model=read_config("deep", DEEP), seq_len=8192, global_batch=1, precision="bf16")
    whole = load_cluster("a10", memory_limit_bytes=None)
    outside = whole.device.usable_bytes - tensor_limit_bytes(whole)
    cluster = load_cluster("a10", memory_limit_bytes=outside + room_bytes)
    pins = Pins(1, None, None, offload=offload)
    return solve(job, cluster, pins, attention="sdpa", objective="time")


@pytest.mark.torch
def test_activations_are_tried_beside_an_optimizer_on_the_host():
    least = nearest(MIB, "optimizer").plan.estimate.predicted_peak_allocated_bytes
    (words,) = sent(least - 15 * MIB, "optimizer")
    assert words.startswith("--offload optimizer,activations would fit, ")


def sent(room_bytes, offload=None):
    found = nearest(room_bytes, offload)
    return [way.words for way in _sending(Namespace(json=True), found, Budget(60))]


@pytest.mark.torch
def test_activations_on_the_host_are_tried_where_they_are_what_is_lacking():
    least = nearest(MIB).plan.estimate.predicted_peak_allocated_bytes
    (words,) = sent(least - 15 * MIB)
    assert words.startswith("--offload activations would fit, ")
    assert words.endswith(" on the host; simulated")
    assert not sent(least - 150 * MIB)  # more than all of them


def unpredicted(room_bytes):
    """Take the same for a job without a formula."""
    found = nearest(room_bytes)
    return found._replace(plan=msgspec.structs.replace(found.plan, estimate=None))


@pytest.mark.torch
def test_states_on_the_host_are_tried_where_a_job_has_no_formula():
    least = nearest(MIB).plan.estimate.predicted_peak_allocated_bytes
    short, args = unpredicted(least - 20 * MIB), Namespace(json=True)

    def left(pins):
        search = Search(short.plan.cluster, pins, "sdpa", "time")
        return [way.words for way in _leaving(args, short, search, Budget(60))]

    (words,) = left(Pins(1, None, None))
    assert words.startswith("--offload optimizer would fit, ")
    assert not left(Pins(1, None, None, offload="none"))


@pytest.mark.torch
def test_offloading_that_is_tried_has_an_outcome(capsys):
    least = nearest(MIB).plan.estimate.predicted_peak_allocated_bytes
    short, args = unpredicted(least - 20 * MIB), Namespace(json=False)
    short = short._replace(plan=msgspec.structs.replace(
        short.plan, cluster=nearest(least // 4).plan.cluster
    ))  # fmt: skip
    ticks = iter(range(100))
    for budget, words in (
        (Budget(60), r"--offload optimizer does not surely fit either, short by [\d.]+ MiB"),
        (Budget(2, clock=lambda: next(ticks)), "was not tried to its end in 2 s"),
    ):
        assert not list(_offloading(args, short, "optimizer", budget))
        assert re.search(words, " ".join(capsys.readouterr().out.split()))


@pytest.mark.torch
def test_adapters_are_a_way_out_of_updates_inside_the_backward_pass():
    """Which have no formula, while adapters do without them; whatever time is left."""
    args = parse("plan", ["qwen3-0.6b", "--gpus", "rtx-4090", "--precision", "bf16"])
    cluster = load_cluster("rtx-4090", memory_limit_bytes=3 * 1024 * MIB)
    pins = Pins(1, None, None, optimizer_in_backward=True)
    job = msgspec.structs.replace(job_from(args), clip=0.0)
    found = solve(job, cluster, Pins(1, None, None), attention="sdpa", objective="time")
    early = msgspec.structs.replace(found.plan.strategy, optimizer_in_backward=True)
    plan = msgspec.structs.replace(found.plan, estimate=None, strategy=early)
    ways = _in_time(found._replace(plan=plan), Search(cluster, pins, "sdpa", "time"), Budget(0))
    words = [way.words for way in ways if way.is_allowed]
    assert any(
        each.startswith("--method lora without --optimizer-in-backward would fit") for each in words
    )


def test_states_of_few_bits_that_do_not_fit_may_be_held_whole_on_the_host():
    """A host has no AdamW of eight bits, so that none of its ways was told."""
    args = parse("plan", ["qwen3-0.6b", "--gpus", "rtx-4090", "--precision", "bf16"])
    job = msgspec.structs.replace(job_from(args), optimizer="adamw-8bit")
    cluster = load_cluster("rtx-4090", memory_limit_bytes=4 * 1024 * MIB)
    search = Search(cluster, Pins(), "sdpa", "time")
    short = solve(job, cluster, search.pins, attention="sdpa", objective="time")
    assert not short.record.rows[0].fits
    (way,) = _unrounded(short, search)
    assert way.words.startswith("--optimizer adamw --offload optimizer would fit here, ")
    assert way.words.endswith(" on the host")
    whole = short._replace(plan=msgspec.structs.replace(short.plan, job=job_from(args)))
    assert not list(_unrounded(whole, search))


def test_what_is_counted_is_said_where_states_have_no_room():
    args = parse("plan", ["llama-3.2-1b", "--gpus", "a10"])
    words = " ".join(fact.text for fact in _counted(args, unpredicted(MIB)))
    assert "for activations, of which nothing is known" in words
    assert not list(_counted(args, unpredicted(nearest(MIB).record.rows[0].peak_bytes)))


def test_what_was_fixed_is_freed_on_the_same_gpu():
    job = make_job(model=read_config("deep", DEEP), seq_len=4096, global_batch=8, precision="bf16")
    cluster = load_cluster("a10", memory_limit_bytes=1500 * MIB)
    pins = Pins(micro_batch=8, activation_checkpointing="none", loss_chunks=1, offload="none")
    found = solve(job, cluster, pins, attention="sdpa", objective="time")
    assert not found.record.rows[0].fits
    args = parse("plan", ["llama-3.2-1b", "--micro-batch", "8"])
    (way,) = _freed(args, found, Search(cluster, pins, "sdpa", "time"))
    assert " --global-batch 8 would" in way.words  # of which one micro-batch was all
    assert way.words.startswith("--micro-batch ")
    assert " would fit here" in way.words
    assert way.solution.plan.strategy.micro_batch < 8
    assert way.solution.plan.strategy.offload == "none"
    free = Pins(offload="none")
    assert not list(_freed(args, found, Search(cluster, free, "sdpa", "time")))


def test_what_was_fixed_of_a_tight_plan_is_freed_where_that_surely_fits(brimful):
    ask = ("plan", "llama-3.1-8b", "--method", "lora", "--gpus", "rtx-4090", "--seq-len", 4096)
    said = brimful(*ask, "--micro-batch", 1, "--ac", "full", "--loss-chunks", 1, "--no-proof")
    assert said.out.startswith("TIGHT")
    (way,) = (line for line in said.out.splitlines() if line.startswith("instead   "))
    assert "--loss-chunks " in way
    assert brimful(*ask, "--micro-batch", 1, "--ac", "full", "--no-proof").out.startswith("FITS")


def test_a_tight_plan_names_what_fits_with_the_same_batch(brimful):
    ask = ("llama-3.1-8b", "--seq-len", 8192, "--global-batch", 8, "--gpus", "h200", "--no-proof",
           "--micro-batch", 1, "--ac", "full", "--loss-chunks", 32)  # fmt: skip
    said = brimful("plan", *ask)
    lines = said.out.splitlines()
    assert (said.code, lines[0].split()[0], len(lines) <= 12) == (1, "TIGHT", True)
    assert max(map(len, lines)) <= 80
    told = " ".join(said.out.split())
    assert re.search(r"instead --gpus 2xh200 would fit, [\d.]+ GiB of [\d.]+ GiB, ", told)
    assert re.search(r"or allow --optimizer adamw-8bit \([\d.]+ GiB, [\d,]+ tokens/s\)", told)
    assert "or allow --optimizer adamw-8bit" in told
    again = brimful("plan", *ask, "--optimizer", "adamw-8bit")
    assert again.out.startswith("FITS")


def test_nothing_is_simulated_for_ways_out_where_no_proof_is_wanted(brimful, monkeypatch):
    """--no-proof tried offloading for a minute."""
    left_s = []

    def told(_found, _search, budget):
        left_s.append(budget.left_s)
        return iter(())

    monkeypatch.setattr("brimful.cli.ways_out._in_time", told)
    ask = ("smollm2-360m", "--gpus", "t4", "--precision", "fp16-mixed", "--pp", 1, "--ac", "none")
    said = brimful("plan", *ask, "--micro-batch", 64, "--global-batch", 64, "--no-proof")
    assert said.out.startswith("NO")
    assert left_s == [0]


def test_a_no_names_what_to_change_on_the_same_card_before_another(brimful):
    """1.5B with 8-bit AdamW on 12 GB: pure bf16 fits, and a larger card and LoRA were named.

    Its loss is in two chunks then, which a few lean ways have not.
    """
    parts = "or allow  --precision bf16 --loss-chunks 2", "--method lora", "instead   --gpus "
    ask = ("qwen2.5-1.5b", "--gpus", "rtx-4070", "--seq-len", 1024)
    said = brimful("estimate", *ask, "--optimizer", "adamw-8bit", "--ac", "full")
    places = [said.out.index(part) for part in parts]
    assert said.out.startswith("NO")
    assert places == sorted(places)


def test_where_neither_recipe_nor_optimizer_is_enough_both_are_named(brimful):
    """3B on 24 GB: bf16 alone is 24 GiB, 8-bit AdamW alone 30, both 18."""
    ask = ("llama-3.2-3b", "--gpus", "rtx-4090", "--seq-len", 1024, "--offload", "none")
    said = brimful("plan", *ask, "--no-proof", "--pp", 1)
    told = " ".join(said.out.split())
    assert "or allow --precision bf16 --optimizer adamw-8bit" in told
    assert told.index("or allow --precision") < told.index("instead --gpus")


def test_two_changes_are_left_out_where_one_is_enough():
    both = "--precision bf16 --optimizer adamw-8bit"
    adapters = ["--method qlora", "--method lora"]
    assert plainest([*adapters, both]) == [both, "--method lora", "--method qlora"]
    one = ["--optimizer adamw-8bit", "--seq-len 512"]
    assert plainest([one[1], both, one[0]]) == one


def test_a_rate_counts_what_its_task_counts():
    job = make_job(seq_len=64, global_batch=8)
    assert _rate(job, 2.0) == ("256", "tokens/s")
    labelled = msgspec.structs.replace(job, task="sequence-classification")
    assert _rate(labelled, 2.0) == ("4", "samples/s")
    assert _rate(labelled, None) == ("", "samples/s")
