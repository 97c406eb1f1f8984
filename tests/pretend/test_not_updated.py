"""Models that no optimizer has are named: averages, teachers, references; no base of adapters."""

import copy

import pytest
import torch
from torch import nn

from brimful import pretend
from brimful.show.pretend import pretend_summary
from brimful.values.results import NOT_UPDATED

pytestmark = pytest.mark.torch

WIDTH, DEPTH = 512, 3
BYTES = 4 * DEPTH * (WIDTH * WIDTH + WIDTH)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Teacher(Net):
    pass


class Both(nn.Module):
    """A pupil and its teacher in one."""

    def __init__(self):
        super().__init__()
        self.pupil, self.teacher = Net(), Teacher().requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            wanted = self.teacher(x)
        return self.pupil(x) - wanted


def ran(model, held=None, *, called=None, trained=None, optimizer=torch.optim.AdamW):
    """Train a model; what is ``held`` lies there, what is ``called`` runs too."""
    parameters = trained or [p for p in model.parameters() if p.requires_grad]
    optimizer = optimizer(parameters)
    for _ in range(2):
        x = torch.zeros(64, WIDTH, device="cuda")
        if called is not None:
            with torch.no_grad():
                x = called(x)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return held


def facts(report):
    return {fact.label: fact.text for fact in pretend_summary(report, ["x.py"]).facts}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_module", [True, False])
def test_a_copy_that_is_never_called_is_told_by_its_sizes(dtype, is_module):
    with pretend.gpu("t4") as run:
        model = Net().cuda()
        average = copy.deepcopy(model).requires_grad_(False).to(dtype)
        if not is_module:
            average = {name: tensor.clone() for name, tensor in average.state_dict().items()}
        ran(model, average)
    report = run.report()
    (found,) = report.not_updated
    assert (found.model, found.num_bytes) == ("", BYTES * dtype.itemsize // 4)
    sizes = {item.name: item.num_bytes for item in report.items}
    assert sizes[NOT_UPDATED] == found.num_bytes
    assert sum(sizes.values()) == report.simulated_peak_allocated_bytes
    assert facts(report)["copies"].startswith("in no optimizer: tensors of the sizes of what is")
    assert f"{NOT_UPDATED} " in facts(report)["peak"]
    assert "copy.py" not in found.line  # where deepcopy makes it
    assert is_module or "test_not_updated.py" in found.line


def test_a_teacher_that_is_called_has_its_class_named():
    with pretend.gpu("t4") as run:
        ran(Net().cuda(), called=Teacher().cuda())
    (found,) = run.report().not_updated
    assert (found.model, found.num_bytes) == ("Teacher", BYTES)
    assert "in no optimizer: Teacher 3.01 MiB" in facts(run.report())["copies"]


def test_a_teacher_within_what_is_trained_is_named_too():
    with pretend.gpu("t4") as run:
        ran(Both().cuda())
    (found,) = run.report().not_updated
    assert (found.model, found.num_bytes) == ("Teacher", BYTES)


def adapted():
    model = Net().cuda().requires_grad_(False)
    for block in model.blocks:
        block.bias.requires_grad_(True)
    ran(model)


def plain():
    ran(Net().cuda())


def masters():
    model = Net().cuda().bfloat16()
    copies = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
    for one in copies:
        one.grad = torch.zeros_like(one)
    ran(model, copies, trained=copies)


@pytest.mark.parametrize("program", [adapted, plain, masters])
def test_what_is_trained_or_adapted_is_no_copy(program):
    with pretend.gpu("t4") as run:
        program()
    assert run.report().not_updated == ()


def test_a_small_copy_is_an_item_of_the_peak():
    with pretend.gpu("t4") as run:
        model = Net().cuda()
        average = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.zeros(64 * WIDTH, WIDTH, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    told = facts(run.report())
    del average  # alive until here
    assert f"{NOT_UPDATED} {BYTES / 2**20:.2f} MiB" in told["peak"]
