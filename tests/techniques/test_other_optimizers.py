"""Optimizers of other programs: what they keep, and between which of ours they lie."""

from itertools import pairwise

import pytest
import torch

from brimful.techniques.optimizers import OPTIMIZERS, OTHERS, Settings, Updated, bounds
from brimful.techniques.optimizers.others import SAMPLE

EVERY = (*OPTIMIZERS.values(),)
WORDS = {word: other for other in OTHERS for word in other.words}
SHAPES = ((64, 96), (5000,), (48,), (8, 3, 4, 4))


def settings_of(num_bytes=4):
    return Settings(num_bytes=num_bytes, kernels="cuda", momentum=0.9, decay=0.1)


def found(word, num_bytes=4):
    return bounds(WORDS[word], EVERY, [settings_of(num_bytes)])


def test_each_is_typed_in_one_way_and_none_is_ours():
    words = [word for other in OTHERS for word in other.words]
    assert len(words) == len({*words})
    assert not {*words} & {*OPTIMIZERS}
    for rule in EVERY:
        assert not {*words} & {*rule.also}


def test_no_parameter_of_the_sample_is_more_than_a_third():
    sizes = sorted(each.num for each in SAMPLE)
    assert 3 * sizes[-1] <= sum(sizes)


@pytest.mark.parametrize(
    ("word", "num_bytes", "ours"),
    [
        ("lion-32bit", 4, "sgd"),
        ("lion-32bit", 2, "adamw"),  # whose two moments are of 16 bits then
        ("schedule-free-adamw", 4, "adamw-foreach"),
        ("schedule-free-sgd", 4, "sgd"),
    ],
)
def test_one_that_takes_as_many_bytes_stands_for_it(word, num_bytes, ours):
    lower, upper, _ = found(word, num_bytes)
    assert lower == upper
    assert (upper.name, upper.beta1) == (ours, None)


@pytest.mark.parametrize(
    ("word", "lower", "upper"),
    [
        ("lion", ("sgd", None), ("adamw", None)),
        ("lion-8bit", ("sgd", 0.0), ("adamw-8bit", None)),
        ("adam-mini", ("sgd", None), ("adamw", None)),
        ("adalomo", ("sgd", 0.0), ("sgd", None)),
        ("came", ("sgd", None), ("adamw-foreach", None)),
        ("apollo", ("sgd", 0.0), ("adamw-foreach", None)),
        ("paged-lion-8bit", ("sgd", 0.0), ("paged-adamw-8bit", None)),
    ],
)
def test_what_none_equals_lies_between_two(word, lower, upper):
    low, high, _ = found(word)
    assert ((low.name, low.beta1), (high.name, high.beta1)) == (lower, upper)


@pytest.mark.parametrize("word", ["prodigy", "adan", "ademamix", "soap", "kron"])
def test_what_keeps_more_than_all_of_ours_has_no_upper_one(word):
    low, high, _ = found(word)
    assert low is not None
    assert high is None


@pytest.mark.parametrize("num_bytes", [2, 4])
@pytest.mark.parametrize("word", ["galore", "galore-adamw-layerwise", "apollo"])
def test_what_keeps_little_of_a_matrix_takes_no_less_than_what_keeps_nothing(word, num_bytes):
    low, _, _ = found(word, num_bytes)
    assert (low.name, low.beta1) == ("sgd", 0.0)


def kept_by(rule, parameter, settings):
    every = rule.state(parameter, settings)
    return sum(each.num_bytes(settings.num_bytes) for each in every
               if each.key != "step" and not each.on_host)  # fmt: skip


@pytest.mark.parametrize("num_bytes", [2, 4])
@pytest.mark.parametrize("word", WORDS)
def test_bounds_hold_for_every_shape(word, num_bytes):
    other, settings = WORDS[word], settings_of(num_bytes)
    low, high, _ = found(word, num_bytes)
    for shape in (*SHAPES, (4096, 11008), (151936, 1024), (4096, 4096)):
        mine = [kept_by(other, Updated(shape), settings)]
        for ours, is_low in ((low, True), (high, False)):
            if ours is None:
                continue
            momentum = settings.momentum if ours.beta1 is None else ours.beta1
            its = kept_by(OPTIMIZERS[ours.name], Updated(shape),
                          settings._replace(momentum=momentum))  # fmt: skip
            mine.insert(0 if is_low else len(mine), its)
        assert all(less <= more for less, more in pairwise(mine)), shape


def measured(make, *, dtype=torch.float32):
    """Return the bytes of what an optimizer keeps, of a parameter of each shape."""
    parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES]
    optimizer = make(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return [
        sum(value.nbytes for key, value in optimizer.state[parameter].items()
            if isinstance(value, torch.Tensor) and value.numel() > 1 and "qmap" not in key)
        for parameter in parameters
    ]  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("adagrad", "Adagrad"),
        ("rmsprop", "RMSprop"),
        ("adadelta", "Adadelta"),
        ("adamax", "Adamax"),
        ("nadam", "NAdam"),
        ("radam", "RAdam"),
    ],
)
def test_what_torch_s_keep_is_what_they_keep(word, name, dtype):
    told = [kept_by(WORDS[word], Updated(each), settings_of(dtype.itemsize)) for each in SHAPES]
    assert told == measured(getattr(torch.optim, name), dtype=dtype)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("lion-32bit", "Lion"),
        ("lion-8bit", "Lion8bit"),
        ("ademamix", "AdEMAMix"),
        ("ademamix-8bit", "AdEMAMix8bit"),
        ("rmsprop-bnb", "RMSprop"),
        ("rmsprop-bnb-8bit", "RMSprop8bit"),
        ("lars", "LARS"),
    ],
)
def test_what_bitsandbytes_keep_is_what_they_keep(word, name):
    optim = pytest.importorskip("bitsandbytes.optim")
    make = getattr(optim, name)
    given = {"lr": 1e-3, **({"momentum": 0.9} if name == "LARS" else {})}
    parameters = [torch.nn.Parameter(torch.zeros(each)) for each in SHAPES]
    optimizer = make(parameters, **given)
    optimizer.fill_qmap()
    kept = []
    for index, parameter in enumerate(parameters):
        parameter.grad = torch.ones_like(parameter)
        optimizer.init_state(optimizer.param_groups[0], parameter, 0, index)
        kept.append(sum(
            value.nbytes for key, value in optimizer.state[parameter].items()
            if isinstance(value, torch.Tensor) and value.numel() > 1 and "qmap" not in key
            and "unorm" not in key
        ))  # fmt: skip
    assert kept == [kept_by(WORDS[word], Updated(each), settings_of()) for each in SHAPES]
