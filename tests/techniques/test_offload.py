"""What is offloaded is read, spelled, and refused with what to change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import InputError, UnsupportedError
from brimful.techniques.offload import KINDS, Away, away_of, spell_offload
from brimful.techniques.runnable import check_strategy
from brimful.values.job import FP8
from samples import make_adapter, make_job, make_strategy

DEPTH = 3
LORA = {"method": "lora", "adapter": make_adapter()}
QLORA = {"method": "qlora", "adapter": make_adapter(base="nf4")}
PARAMETERS = {"offload": "parameters:1", "micro_batch": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", (False, 0, 0)),
        ("optimizer", (True, 0, 0)),
        ("parameters", (True, 3, 0)),
        ("parameters:2", (True, 2, 0)),
        ("activations:1", (False, 0, 1)),
        ("optimizer,activations", (True, 0, 3)),
        ("activations,parameters:1", (True, 1, 3)),
    ],
)
def test_what_people_type_is_read(text, expected):
    assert away_of(text, num_layers=DEPTH) == Away(*expected)


@given(st.booleans(), st.integers(0, DEPTH), st.integers(0, DEPTH))
def test_what_is_spelled_is_read_again(optimizer, parameters, activations):
    away = Away(optimizer or parameters > 0, parameters, activations)
    assert away_of(spell_offload(away, num_layers=DEPTH), num_layers=DEPTH) == away


@given(st.booleans(), st.integers(0, DEPTH), st.integers(0, DEPTH))
def test_what_is_spelled_of_a_frozen_base_is_read_again(optimizer, parameters, activations):
    away = Away(optimizer, parameters, activations, frozen=parameters > 0)
    text = spell_offload(away, num_layers=DEPTH)
    assert away_of(text, num_layers=DEPTH, is_frozen=True) == away


@pytest.mark.parametrize("spread", [{}, {"dp_replicate": 2}, {"zero": 1, "dp_shard": 2}], ids=str)
@pytest.mark.parametrize("base", ["nf4", "nf4-double", "int8"])
def test_a_frozen_base_is_each_devices_own_to_bring(base, spread):
    job = make_job(method="qlora", adapter=make_adapter(base=base))
    check_strategy(job, make_strategy(micro_batch=2, offload="parameters", **spread))


def test_parameters_that_are_updated_early_do_not_take_the_optimizer_along():
    assert away_of("parameters:2", num_layers=DEPTH, updates_early=True) == Away(False, 2, 0)
    assert away_of("optimizer", num_layers=DEPTH, updates_early=True) == Away(True, 0, 0)
    job = make_job(clip=0.0, optimizer="adamw-8bit")
    check_strategy(
        job, make_strategy(micro_batch=4, offload="parameters", optimizer_in_backward=True)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("everything", "optimizer, parameters:K"),
        ("optimizer:2", "is not known"),
        ("activations:4", "asks for 4 blocks and the model has 3"),
        ("parameters:0", "K from 1 to 3"),
        ("activations,activations:2", "names activations twice"),
        ("", "is not known"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_can(text, said):
    with pytest.raises(InputError, match=said):
        away_of(text, num_layers=DEPTH)


@pytest.mark.parametrize(
    ("job", "strategy", "said"),
    [
        ({}, {"offload": "optimizer", "dp_replicate": 2}, "zero=0 on 2 devices"),
        ({}, {"offload": "parameters:1", "zero": 3, "dp_shard": 2}, "use offload=optimizer"),
        ({}, {"offload": "activations", "pp": 3}, "pp=3"),
        ({"precision": FP8}, {"offload": "parameters"}, f"precision={FP8}"),
        ({"optimizer": "adamw-8bit"}, {"offload": "optimizer"}, "optimizer=adamw-8bit"),
        ({**QLORA, "adapter": make_adapter(base="llm-int8")}, PARAMETERS, "base=llm-int8"),
        (QLORA, {**PARAMETERS, "zero": 2, "dp_shard": 2}, "use zero=0 or zero=1"),
        (QLORA, {**PARAMETERS, "pp": 3}, "pp=3"),
        (LORA, {**PARAMETERS, "tp": 2}, "tp=2"),
    ],
)
def test_what_is_not_run_is_refused(job, strategy, said):
    with pytest.raises(UnsupportedError, match=said):
        check_strategy(make_job(**job), make_strategy(**strategy))


def test_deepspeed_keeps_all_blocks_or_none():
    strategy = make_strategy(
        engine="deepspeed", zero=3, dp_shard=2, offload="parameters:1", micro_batch=2
    )
    with pytest.raises(UnsupportedError, match="offload=parameters:1"):
        check_strategy(make_job(), strategy)


@pytest.mark.parametrize(
    ("job", "strategy", "error", "said"),
    [
        ({"clip": 1.0}, {"micro_batch": 4}, InputError, "clip=1.0 needs the norm"),
        ({"clip": 0.0}, {"micro_batch": 2}, InputError, "2 micro-batches must add up"),
        ({"clip": 0.0}, {"micro_batch": 2, "dp_replicate": 2}, UnsupportedError, "2 devices"),
        ({"clip": 0.0}, {"micro_batch": 4, "offload": "optimizer"}, UnsupportedError, "offload"),
        (
            {"clip": 0.0, "precision": "bf16-master"},
            {"micro_batch": 4, "offload": "parameters"},
            UnsupportedError,
            "offload=parameters and precision=bf16-master",
        ),
        (
            {"clip": 0.0},
            {"micro_batch": 2, "offload": "parameters", "dp_replicate": 2},
            UnsupportedError,
            "2 devices",
        ),
    ],
)
def test_an_early_update_is_refused_where_it_is_not_exact(job, strategy, error, said):
    with pytest.raises(error, match=said):
        check_strategy(make_job(**job), make_strategy(optimizer_in_backward=True, **strategy))


def test_kinds_are_spelled_in_one_order():
    text = spell_offload(Away(True, 1, 2), num_layers=DEPTH)
    assert [part.partition(":")[0] for part in text.split(",")] == list(KINDS[1:])


@pytest.mark.parametrize(
    ("text", "precision", "nearest"),
    [
        ("parameters", "bf16", "bf16-master"),
        ("parameters:3", "bf16-mixed", "bf16-mixed"),
        ("parameters:2", "bf16", None),
        ("parameters,activations", "bf16", None),
    ],
)
def test_all_parameters_of_several_devices_are_deepspeeds_to_offload(text, precision, nearest):
    """What only a part of is offloaded of is no switch of its."""
    strategy = make_strategy(micro_batch=2, dp_shard=2, zero=3, offload=text)
    with pytest.raises(UnsupportedError) as error:
        check_strategy(make_job(precision=precision), strategy)
    told = {"engine": "deepspeed", "zero": 3, "offload": "parameters", "precision": nearest}
    assert error.value.nearest == (told if nearest else {"offload": "optimizer"})
