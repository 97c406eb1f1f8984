"""What expert parallelism runs, and what it says of the rest; without torch."""

import subprocess
import sys

import pytest

from brimful.errors import InputError, UnsupportedError
from brimful.models.config import read_config
from brimful.techniques.parallel.routing import BALANCED, Replay, Routing, worst
from brimful.techniques.runnable import check_examined, check_strategy
from brimful.values.strategy import world_size
from other_decoders import CONFIGS
from samples import make_job, make_strategy

SHARDED = {"zero": 3, "dp_shard": 8}


def mixture(kind="mixtral"):
    """Make the job of a tiny mixture whose every matrix four devices can share."""
    config = {**CONFIGS[kind], "num_key_value_heads": 4, "vocab_size": 96}
    model = read_config(f"tiny-{kind}", {"model_type": kind, **config})
    return make_job(model=model, global_batch=8, seq_len=16)


@pytest.mark.parametrize(
    ("spread", "error", "said"),
    [
        ({"ep": 3, "zero": 3, "dp_shard": 6}, InputError, "ep=3 does not divide the 4 experts"),
        ({"ep": 4, "zero": 3, "dp_shard": 2}, InputError, r"ep=4 does not divide dp_shard=2 = 2"),
        ({"ep": 2, "dp_replicate": 2}, UnsupportedError, "ep=2 with zero=0 is not run"),
        ({"ep": 2, "zero": 1, "dp_shard": 2}, UnsupportedError, "ep=2 with zero=1 is not run"),
        ({"ep": 0}, InputError, "ep=0 is too few"),
        ({"tp": 2}, UnsupportedError, "tp=2 of .* is run with its experts parted .* use ep=2"),
        ({"tp": 2, "ep": 1, **SHARDED}, UnsupportedError, "use ep=2 or a multiple"),
        (
            {"ep": 2, "tp": 4, "zero": 3, "dp_shard": 2},
            InputError,
            "ep=2 is no multiple of tp=4.* use ep=4",
        ),
    ],
)
def test_degrees_that_do_not_go_together_are_refused_with_the_fix(spread, error, said):
    with pytest.raises(error, match=said):
        check_strategy(mixture(), make_strategy(micro_batch=1, **spread))


@pytest.mark.parametrize(
    ("kind", "spread"),
    [
        ("mixtral", {"ep": 2, "zero": 3, "dp_shard": 2}),
        ("mixtral", {"ep": 4, "zero": 2, "dp_shard": 8}),
        ("mixtral", {"ep": 2, "tp": 2}),
        ("mixtral", {"ep": 4, "tp": 2, "zero": 3, "dp_shard": 2}),
        ("qwen3_moe", {"ep": 2, "zero": 3, "dp_shard": 2, "dp_replicate": 2}),
        ("deepseek_v3", {"ep": 8, "zero": 3, "dp_shard": 8}),
        ("deepseek_v2", {"ep": 4, "zero": 2, "dp_shard": 4}),
        ("gpt_oss", {"ep": 2, "zero": 3, "dp_shard": 2}),
    ],
)
def test_layouts_that_run_are_taken(kind, spread):
    attention = "eager" if kind == "gpt_oss" else "sdpa"
    strategy = make_strategy(micro_batch=1, attention=attention, **spread)
    assert check_strategy(mixture(kind), strategy) is strategy


def test_experts_take_no_devices_of_their_own():
    assert world_size(make_strategy(ep=4, zero=3, dp_shard=4)) == 4


def test_dense_models_have_nothing_to_part():
    with pytest.raises(InputError, match="ep=2 parts experts and tiny-llama has none"):
        check_strategy(make_job(global_batch=8), make_strategy(ep=2, zero=3, dp_shard=2))


@pytest.mark.parametrize("field", ["ep", "pp"])
def test_the_precision_doctor_refuses_what_is_on_other_devices(field):
    check_examined(make_strategy())
    with pytest.raises(UnsupportedError, match=f"{field}=2 is not examined.*use {field}=1"):
        check_examined(make_strategy(**{field: 2}))


def test_the_worst_routing_sends_every_choice_that_a_device_can_serve():
    job = mixture()  # four experts, two chosen
    assert worst(job, 2) == Routing(share=2.0)  # both choices of all tokens of two devices
    assert worst(job, 4) == Routing(share=2.0)  # of four devices, but only one choice each


def test_a_routing_answers_pass_by_pass_and_recomputed_passes_apart():
    assert Replay(BALANCED)(0, 10, False) == 10
    assert Replay(Routing(share=1.5))(3, 10, True) == 15
    replay = Replay(Routing(received=((1, 2), (7,))))
    assert [replay(0, 10, False) for _ in range(3)] == [1, 2, 1]
    assert [replay(0, 10, True) for _ in range(2)] == [1, 2]
    assert replay(1, 10, False) == 7


def test_the_predicate_needs_no_torch():
    code = (
        "import sys, brimful.techniques.parallel.experts, brimful.techniques.parallel.routing; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
