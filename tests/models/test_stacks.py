"""How many blocks of an encoder-decoder read, before and after it was built."""

import pytest

from brimful.cost.family import bodies_of
from brimful.models.config import read_config
from brimful.models.stacks import num_readers
from samples import make_job

READERS = {
    "t5": ({"num_layers": 5, "num_decoder_layers": 2}, 5, 7),
    "switch_transformers": ({"num_layers": 4, "num_decoder_layers": 3}, 4, 7),
    "bart": ({"encoder_layers": 4, "decoder_layers": 3}, 4, 7),
    "umt5": ({"num_layers": 3, "num_decoder_layers": 8}, 3, 11),
}


@pytest.mark.torch
@pytest.mark.parametrize("model_type", READERS)
def test_readers_are_told_from_writers_before_a_model_is_built(model_type):
    config, readers, blocks = READERS[model_type]
    model = read_config("pair", {"model_type": model_type, **config})
    assert (num_readers(model), model.num_layers) == (readers, blocks)


@pytest.mark.parametrize("writers", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("readers", [1, 2, 3, 5, 12])
def test_every_number_of_checkpointed_blocks_is_of_one_body(readers, writers):
    config = {"model_type": "t5", "num_layers": readers, "num_decoder_layers": writers}
    job = make_job(model=read_config("pair", config), task="seq2seq", packing="none")
    found = sorted(number for counts in bodies_of(job).values() for number in counts)
    assert found == list(range(readers + writers + 1))


def test_one_stack_has_one_body_of_both_kinds():
    bodies = bodies_of(make_job())
    assert list(bodies) == ["plain", "mixed", "checkpointed"]
