"""Data that comes with a module: order, position, split and what is wrong with it."""

import sys
from types import SimpleNamespace

import pytest
import torch
from tests.samples import make_job
from torch import nn

from brimful.errors import DataError
from brimful.models.config import load_model
from brimful.train.data.batches import START
from brimful.train.data.module_data import open_module_data
from brimful.train.data.source import plain_source

pytestmark = pytest.mark.torch
NUM = 200


def factory(dataset):
    """Make a module that can be imported by name, with this dataset."""

    def build():
        return SimpleNamespace(
            model=nn.Linear(3, 4),
            loss=lambda out, labels: nn.functional.cross_entropy(out, labels, reduction="sum"),
            sample=lambda n: (torch.zeros(n, 3), torch.zeros(n, dtype=torch.int64)),
            dataset=dataset,
        )

    sys.modules["made_up_module"] = SimpleNamespace(build=build)
    return make_job(
        model=load_model("made_up_module:build"),
        task="module",
        packing="none",
        seq_len=1,
        global_batch=8,
    )


def numbered(num=NUM):
    return [(torch.full((3,), float(n)), torch.tensor(n % 4)) for n in range(num)]


def opened(job, *, micro_batch=4, path="module"):
    return open_module_data(job, plain_source(path), micro_batch=micro_batch)


def numbers(batches):
    return [int(x[0]) for batch in batches for x in batch.inputs]


def test_a_pass_sees_every_sample_once_and_none_that_is_held_out():
    data = opened(factory(numbered()))
    num_steps = -(-len(data.batches.numbers) // 8)
    position, seen = START, []
    for _ in range(num_steps):
        batches, position = data.batches.step_at(position)
        seen += numbers(batches)
    once = seen[: len(data.batches.numbers)]
    assert sorted(once) == data.batches.numbers
    assert not set(seen) & set(numbers(data.heldout))
    assert len(data.batches.numbers) + data.num_heldout == NUM


def test_micro_batch_and_position_change_nothing_of_a_step():
    job = factory(numbered())
    one, four = opened(job, micro_batch=1), opened(job, micro_batch=4)
    _, position = one.batches.step_at(START)
    assert numbers(one.batches.step_at(position)[0]) == numbers(four.batches.step_at(position)[0])
    assert [len(b.inputs) for b in four.batches.step_at(START)[0]] == [4, 4]


def test_labels_that_are_classes_have_an_entropy_and_others_have_none():
    assert 1.0 < opened(factory(numbered())).label_entropy < 1.4
    floats = [(x, torch.tensor(float(y))) for x, y in numbered()]
    assert opened(factory(floats)).label_entropy == 0.0


@pytest.mark.parametrize(
    ("dataset", "path", "words"),
    [
        (numbered(), "data.csv", "--data data.csv .*--data module"),
        (None, "module", "nothing called dataset"),
        (numbered(4), "module", "4 samples.*global_batch=8"),
        ([1] * NUM, "module", "sample 0|sample .* is no input and label"),
        (
            [(torch.zeros(2 + n % 2), torch.tensor(0)) for n in range(NUM)],
            "module",
            "differ in shape",
        ),
    ],
    ids=["path", "none", "few", "no pair", "shapes"],
)
def test_what_cannot_be_used_is_named(dataset, path, words):
    with pytest.raises(DataError, match=words):
        opened(factory(dataset), path=path)
