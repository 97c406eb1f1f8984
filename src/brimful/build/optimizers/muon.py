"""torch's Muon and AdamW as one optimizer, whose groups say which of both updates them."""

import torch

from brimful.build.optimizers.base import HIDDEN, Group
from brimful.job import Job

RATE = "match_rms_adamw"
"""How the rate is adjusted to a matrix: Moonlight's, which takes AdamW's rate and decay."""


def build(groups: list[Group], job: Job) -> torch.optim.Optimizer:
    """Make Muon for matrices of blocks, and fused AdamW for the other groups."""
    return MuonBesideAdamW(groups, job)


class MuonBesideAdamW(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped to mypy
    """Both optimizers over one list of groups and one state, which any checkpoint holds."""

    def __init__(self, groups: list[Group], job: Job) -> None:
        """Give each rule its groups, with its own settings in them.

        Args:
            groups: As ``parameter_groups`` makes them.
            job: Says the rates.
        """
        betas = (job.beta1, job.beta2)
        hidden = [group for group in groups if group.get(HIDDEN)]
        others = [group for group in groups if not group.get(HIDDEN)]
        self._rules: list[torch.optim.Optimizer] = []
        if hidden:
            self._rules.append(torch.optim.Muon(hidden, lr=job.learning_rate, adjust_lr_fn=RATE))
        if others:
            self._rules.append(
                torch.optim.AdamW(
                    others, lr=job.learning_rate, betas=betas, eps=job.epsilon, fused=True
                )
            )
        super().__init__([group for rule in self._rules for group in rule.param_groups], {})

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient.

        Args:
            closure: Not used; torch's optimizers have it.
        """
        del closure
        for rule in self._rules:
            is_muon = isinstance(rule, torch.optim.Muon)
            rule.state = self.state
            rule.param_groups = [g for g in self.param_groups if bool(g.get(HIDDEN)) == is_muon]
            rule.step()
