"""Decoders that classify: what stands in the place of their output layer."""

import pytest

from brimful.models.config import default_task, for_task, known_count, load_model, parameter_count
from brimful.models.resized import with_num_labels


@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-3.1-8b"])  # tied, and not
def test_a_score_stands_in_the_place_of_the_output_layer(name):
    model = load_model(name)
    scored = for_task(with_num_labels(model, 7), "sequence-classification")
    assert not scored.tied_embeddings
    before = parameter_count(model).total - parameter_count(model).head
    assert parameter_count(scored).total == before + 7 * model.hidden_size
    assert known_count(scored) == parameter_count(scored).total


def test_a_task_goes_and_comes_back():
    model = load_model("qwen3-0.6b")
    scored = for_task(model, "sequence-classification")
    assert default_task(scored) == "sequence-classification"
    assert for_task(scored, "sequence-classification") is scored
    assert for_task(scored, "causal-lm") == model
    assert for_task(model, "dpo") is model


def test_encoders_have_a_head_of_their_own():
    bert = load_model("bert-base-uncased")
    assert for_task(bert, "sequence-classification") is bert
