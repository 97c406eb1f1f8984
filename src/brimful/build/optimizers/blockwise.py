"""AdamW by bitsandbytes: moments in blocks of 8 bits or whole, on the GPU or paged.

The arithmetic and the kernels are those of ``bitsandbytes.optim``, called one level lower for three
reasons: all state is then tensors under plain keys, so that any checkpoint can hold it; the two
tables of 8-bit values are held once and not by every parameter; and the device is not waited for
after every parameter.

Of a sharded parameter each device updates its own part, whose blocks begin where that begins.
Moments that are paged are a tensor of the host by which kernels of a GPU find managed memory.
Source: Dettmers et al. 2022, arXiv:2110.02861; ``bitsandbytes/optim/optimizer.py``.
"""

import importlib
from typing import Any

import torch

from brimful.build.managed import mark_paged, paged_like
from brimful.build.optimizer_state import restore_types
from brimful.build.optimizers.base import NO_SETTINGS, Group, first_state
from brimful.build.own import own_memory, share_of
from brimful.errors import UnsupportedError
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS, Optimizer, Updated
from brimful.techniques.optimizers.base import STEP
from brimful.values.job import Job

_RULE = "adam"
"""What bitsandbytes calls the rule; decay is decoupled."""
_CUDA = NO_SETTINGS._replace(kernels="cuda")


def build(groups: list[Group], job: Job) -> torch.optim.Optimizer:
    """Make the job's AdamW.

    Raises UnsupportedError: bitsandbytes is not installed.
    """
    rule, betas = OPTIMIZERS[job.optimizer], (job.beta1, job.beta2)
    return BlockwiseAdamW(groups, rule, lr=job.learning_rate, betas=betas, eps=job.epsilon)


class BlockwiseAdamW(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped to mypy
    """AdamW by bitsandbytes' kernels."""

    def __init__(
        self,
        groups: list[Group],
        rule: Optimizer,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        """Take groups of parameters, each with its ``weight_decay``.

        ``rule``: the record that says what is kept. ``lr``: learning rate of groups without their
        own. ``eps``: what is added to the root of the second moment. Raises UnsupportedError:
        bitsandbytes is not installed.
        """
        self._kernels, self._rule = _bitsandbytes(rule.name), rule
        self._tables: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient.

        ``closure``: not used; torch's optimizers have it.
        """
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned, 8-bit moments in 8 bits; see torch's."""
        apart, rest = self._parted(state_dict)
        super().load_state_dict(rest)
        restore_types(self, rest)
        for parameter, key, value in apart:  # which never were on the device
            self.state[parameter][key] = paged_like(parameter, value)

    def _update(self, parameter: torch.Tensor, group: Group) -> None:
        state = self.state[parameter]
        if not state:
            settings = _CUDA if parameter.is_cuda else NO_SETTINGS
            state.update(first_state(self._rule.state, parameter, settings))
        state["step"] += 1
        own = own_memory(parameter)
        if not own.numel():  # more devices than rows
            return
        gradient = own_memory(parameter.grad).contiguous()
        mine = {key: own_memory(kept) for key, kept in state.items()}
        self._fetch(mine, own)
        update = self._update_in_blocks if "absmax" in state else self._update_whole
        update(own, gradient, mine, group)

    def _parted(
        self, state_dict: dict[str, Any]
    ) -> tuple[list[tuple[torch.Tensor, str, torch.Tensor]], dict[str, Any]]:
        """Part what is paged of a state from the rest of it."""
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        ours = [p for group in self.param_groups for p in group["params"]]
        states, apart = dict(state_dict["state"]), []
        for index, parameter in zip(saved, ours, strict=True):
            every = self._rule.state(Updated(share_of(parameter)), _CUDA)
            keys = {kept.key for kept in every if kept.is_paged}
            for key, value in states.get(index, {}).items():
                is_away = parameter.is_cuda or value.device != parameter.device
                if key in keys and is_away:
                    apart.append((parameter, key, value))
                    states[index] = {k: x for k, x in states[index].items() if k != key}
        return apart, {**state_dict, "state": states}

    def _fetch(self, state: dict[str, torch.Tensor], parameter: torch.Tensor) -> None:
        """Ask for what is paged ahead of its update, and say to the kernels what it is."""
        for key, kept in state.items():
            if key != STEP and kept.device != parameter.device:
                mark_paged(kept, parameter.device)
                if parameter.is_cuda:
                    self._kernels.prefetch_tensor(kept)

    def _update_in_blocks(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        state: dict[str, torch.Tensor],
        group: Group,
    ) -> None:
        signed, unsigned = self._tables_on(parameter.device)
        self._kernels.optimizer_update_8bit_blockwise(
            _RULE,
            gradient,
            parameter,
            state["exp_avg"],
            state["exp_avg_sq"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            beta3=0.0,
            alpha=0.0,
            eps=group["eps"],
            step=int(state["step"].item()),
            lr=group["lr"],
            qmap1=signed,
            qmap2=unsigned,
            absmax1=state["absmax"],
            absmax2=state["absmax_sq"],
            weight_decay=group["weight_decay"],
        )

    def _update_whole(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        state: dict[str, torch.Tensor],
        group: Group,
    ) -> None:
        self._kernels.optimizer_update_32bit(
            _RULE,
            gradient,
            parameter,
            state["exp_avg"],
            beta1=group["betas"][0],
            eps=group["eps"],
            step=int(state["step"].item()),
            lr=group["lr"],
            state2=state["exp_avg_sq"],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
        )

    def _tables_on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the 256 signed and the 256 unsigned values that 8 bits stand for."""
        if device not in self._tables:
            make = self._kernels.create_dynamic_map
            self._tables[device] = make(signed=True).to(device), make(signed=False).to(device)
        return self._tables[device]


def _bitsandbytes(name: str) -> Any:
    try:
        return importlib.import_module("bitsandbytes.functional")
    except ImportError as error:
        raise UnsupportedError(
            f"optimizer={name} needs bitsandbytes, which cannot be imported ({error}); "
            f"pip install 'brimful[quant]' or use optimizer={DEFAULT}"
        ) from error
