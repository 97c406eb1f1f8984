"""What to change is said to be enough only where it saves what is short."""

import torch
from msgspec.structs import replace

from brimful import pretend
from brimful.show.changes import change_facts
from brimful.units import GIB


def test_a_saving_below_the_shortage_is_not_said_to_do():
    with pretend.gpu("t4") as run:
        model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device="cuda") for _ in range(4)])
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.ones(2**18, 4096, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    report = run.report()
    [said] = [fact.text for fact in change_facts(report) if fact.label == "change"]
    assert "(saved activations, transients and kernel workspaces) 24.02 GiB (may do)" in said
    held = report.reserved.simulated_peak_reserved_bytes + 25 * GIB  # in fragments
    reserved = replace(report.reserved, simulated_peak_reserved_bytes=held)
    [said] = [
        x.text for x in change_facts(replace(report, reserved=reserved)) if x.label == "change"
    ]
    assert "may do" not in said
