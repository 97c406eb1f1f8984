"""Of several models each is told by its variable's name; checkpointing in vain is told."""

import pytest
import torch
from torch import nn

from brimful import pretend
from brimful.show.pretend import pretend_summary
from brimful.values.results import OPTIMIZER_STATE, PARAMETERS, SAVED_ACTIVATIONS

pytestmark = pytest.mark.torch
WIDTH, ROWS = 64, 512
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)


def net(depth):
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(depth))).cuda()


def facts(report):
    return {fact.label: fact.text for fact in pretend_summary(report, ["x.py"]).facts}


def test_each_of_several_models_has_its_state_and_what_its_passes_left():
    with pretend.gpu("t4") as run:
        policy, critic, reference = net(4), net(2), net(3).requires_grad_(False)
        optimizer = torch.optim.AdamW([*policy.parameters(), *critic.parameters()])
        for _ in range(2):
            x = torch.zeros(ROWS, WIDTH, device="cuda")
            with torch.no_grad():
                wanted = reference(x)
            made, value = policy(x), critic(x)
            ((made - wanted).square().mean() + value.mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    report = run.report()
    found = {each.name: dict(each.items) for each in report.models}
    assert set(found) == {"policy", "critic", "reference"}
    for name, depth in (("policy", 4), ("critic", 2), ("reference", 3)):
        assert found[name][PARAMETERS] == depth * LAYER_BYTES
        state = found[name].get(OPTIMIZER_STATE, 0)
        assert state // (2 * LAYER_BYTES) == (0 if name == "reference" else depth)
    assert found["policy"][SAVED_ACTIVATIONS] > found["critic"].get(SAVED_ACTIVATIONS, 0)
    assert SAVED_ACTIVATIONS not in found["reference"]
    assert facts(report)["models"].startswith("policy ")
    printed = str(report)
    assert "By model\n" in printed
    assert len(printed.splitlines()) < 40
    assert len(repr(report)) < 300


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net(2)
        self.gradient_checkpointing = True

    def forward(self, x):
        if self.gradient_checkpointing and self.training:
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)
        return self.inner(x)


@pytest.mark.parametrize("trains", [True, False])
def test_checkpointing_of_a_model_in_eval_mode_is_in_vain(trains):
    with pretend.gpu("t4") as run:
        model = Blocks().train(trains)
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            model(torch.zeros(ROWS, WIDTH, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    report = run.report()
    assert not report.models
    told = facts(report)
    assert ("no effect" in told) is not trains
    assert trains or "Blocks is in eval mode: model.train()" in told["no effect"]
