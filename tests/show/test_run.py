"""How a speed that is not known is told."""

import pytest

from brimful.cli.assumed import run_of
from brimful.cli.main import parser_of
from brimful.cli.resolved import Asked
from brimful.cost.estimate import estimate
from brimful.cost.money import Price, Prices, cost_of
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.show.run import speed_facts, would_be_facts
from brimful.show.summary import Fact
from brimful.show.terminal import fact_lines, speed_hidden
from samples import make_job, make_strategy


@pytest.mark.parametrize(
    ("precision", "whose"),
    [("fp8", "this GPU in this precision"), ("bf16-mixed", "what links these GPUs")],
)
def test_what_is_not_known_is_named(precision, whose):
    """An fp8 rate stands in the data sheet of a B200, and no share of it was fitted to a run."""
    job = make_job(precision=precision)
    cluster = load_cluster("8xb200", memory_limit_bytes=None)
    (fact,) = speed_facts(job, None, None, cluster=cluster)
    assert fact.text == f"unknown: no rates are known of {whose}"


@pytest.mark.parametrize(
    ("prices", "is_length_given", "words"),
    [({}, True, "100 steps (205K tokens): "), ({"h100-80gb": 2.5}, False, "a billion tokens: ")],
)
def test_what_has_no_room_is_told_its_time_and_no_money(prices, is_length_given, words):
    """It lost its time to a cut behind the steps, and asked for a price or told what it costs."""
    job = make_job(seq_len=1024, global_batch=2, num_steps=100)
    cluster = load_cluster("2xh100-80gb", memory_limit_bytes=None)
    priced = {gpu: Price(usd_per_gpu_hour=usd, date="", source="") for gpu, usd in prices.items()}
    cost = cost_of(job, cluster, 0.1, Prices(date="", gpus=priced))
    (fact,) = would_be_facts(job, cost, 0.1, num_devices=2, is_length_given=is_length_given)
    rate, _, took = fact.text.partition("; ")
    assert rate == "20,500 tokens/s, 10,200 a GPU"
    assert took.startswith(words)
    assert took.endswith(" s" if is_length_given else " h")
    assert "USD" not in took
    assert "cost" not in took


def test_all_that_is_said_of_speed_is_hidden_with_it():
    facts = [Fact(label, "1 h") for label in ("speed", "would be", "limits", "network", "by count")]
    with speed_hidden(is_hidden=True):
        assert fact_lines(facts) == []
    assert len(fact_lines(facts)) == len(facts)


def test_a_share_that_rounds_to_nothing_is_there():
    """It was told to be 0%."""
    cluster = load_cluster("2x8xh100-80gb", memory_limit_bytes=None)
    for share, words in ((0.001, "under 1%"), (0.012, "1%")):
        (fact,) = speed_facts(make_job(), None, 0.1, cluster=cluster, network_share=share)
        assert fact.text.endswith(f"; {words} of it waits for the network")


def test_what_is_compiled_and_has_no_time_is_bounded_by_the_same_uncompiled():
    typed = ["llama-3.2-1b", "--gpus", "h100", "--tokens", "1B", "--deadline", "1d"]
    args = parser_of("plan").parse_args(typed)
    cluster = load_cluster("h100-80gb", memory_limit_bytes=None)
    job = make_job(num_steps=100)
    asked = Asked(job, cluster, make_strategy(compile="blocks"))
    eager = run_of(args, asked._replace(strategy=make_strategy()), None, 0.1).fitting[0]
    speed, run, limits = run_of(args, asked, None, None).fitting
    assert " tokens/s or more: " in speed.text
    assert eager.label == speed.label
    assert run.text.endswith(", at most")
    assert limits.text.startswith("the deadline is not checked: how much faster")


def test_a_simulated_pipeline_has_no_time_whatever_links_its_gpus():
    cluster = load_cluster("8xb200", memory_limit_bytes=None)
    (fact,) = speed_facts(make_job(), None, None, cluster=cluster, is_staged=True)
    assert fact.text == "unknown: of a simulated pipeline one device is recorded"


def test_what_limits_a_step_that_multiplies_little_is_said():
    """Eager attention of long rows reads and writes scores; fused, products are most of a step."""
    args = parser_of("plan").parse_args(["llama-3.2-1b", "--gpus", "h100"])
    asked = Asked(
        make_job(model=load_model("llama-3.2-1b"), precision="bf16-mixed", seq_len=4096),
        load_cluster("h100-80gb", memory_limit_bytes=None),
        make_strategy(micro_batch=1, attention="eager"),
    )

    def told(strategy):
        made = estimate(asked.job, asked.cluster, strategy)
        run = run_of(args, asked._replace(strategy=strategy), made, made.predicted_step_s)
        return run.fitting[0], made.predicted_step_time

    speed, parts = told(asked.strategy)
    share = f"{parts.memory_s / parts.total_s:.0%}"
    assert speed.text.endswith(
        f"; {share} of it is memory traffic, mostly eager attention's scores"
    )
    assert speed.short.endswith(f"; {share} of it is memory traffic")
    assert "memory traffic" not in told(make_strategy(micro_batch=1))[0].text
