"""What a GPU does not hold is on the host, of which the pretend GPU's has enough."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from brimful import pretend

pytestmark = pytest.mark.torch

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
MIB = 2**20


def test_the_host_has_memory_enough():
    modeling = pytest.importorskip("accelerate.utils.modeling")
    with pretend.gpu("h100-80gb") as run:
        torch.ones(1, device="cuda")
        found, given = modeling.get_max_memory(), modeling.get_max_memory({0: 1, "cpu": 2})
    assert found["cpu"] == 2**50
    assert given == {0: 1, "cpu": 2}
    assert "device_map places on the host" in " ".join(run.report().assumptions)
    assert modeling.get_max_memory()["cpu"] < 2**50


def test_a_model_that_the_gpu_does_not_hold_runs_from_the_host():
    pytest.importorskip("accelerate")
    with pretend.gpu("h100-80gb") as run:
        model = AutoModelForCausalLM.from_pretrained(
            NAME, device_map="auto", max_memory={0: 128 * MIB, "cpu": 1024 * MIB}
        )
        tokens = torch.zeros(1, 8, dtype=torch.long, device="cuda")
        with torch.no_grad():
            model(input_ids=tokens)
    assert {x.device.type for x in model.parameters()} == {"gpu", "meta"}
    # The model is of 257 MiB; the others of its layers come one by one.
    assert 64 * MIB < run.peak_allocated_bytes < 224 * MIB


def test_a_parameter_is_made_by_the_class_of_another():
    with pretend.gpu("h100-80gb"):
        old = nn.Linear(2, 3, device="cuda").weight
        new = type(old)(torch.ones(3, 2), requires_grad=False)
        assert isinstance(new, nn.Parameter)
    assert not new.requires_grad
