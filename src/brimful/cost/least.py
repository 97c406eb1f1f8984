"""The least that a run needs, from the number of its parameters: for what has no formula.

Parameters, gradients and optimizer state are in memory together at the update, whatever a block
computes and whose kernels run. Activations, buffers of collectives and the allocator's rounding are
left out, so that this says what cannot fit, and never what does.
"""

from typing import NamedTuple

from brimful.cost.recipes import RECIPES
from brimful.cost.states import states
from brimful.cost.trained import HALF_BYTES, num_whole, trained_recipe
from brimful.cost.update import CUDA, update_of
from brimful.errors import UnsupportedError
from brimful.models.config import active_parameters, has_layout
from brimful.models.spec import ModelSpec
from brimful.techniques.offload import away_of
from brimful.techniques.optimizers import OPTIMIZERS, Updated
from brimful.values.job import Base, Job, Task

_PACKED_BYTES: dict[Base, float] = {
    "nf4": 0.5,
    "nf4-double": 0.5,
    "int8": 1.0,
    "llm-int8": 1.0,
    "bf16": HALF_BYTES,
    "fp16": HALF_BYTES,
}
"""Bytes of a weight at least; embeddings, norms and scales take more."""
_UNPACKED_BYTES = HALF_BYTES
"""Of what is not packed, at least."""


class Least(NamedTuple):
    """Bytes that there are at least, of all devices together.

    Attributes:
        parameters: Of all that train and all that do not.
        gradients: Of what trains.
        optimizer_state: What the update keeps; 0 where that hangs on shapes that nobody has listed.
    """

    parameters: int
    gradients: int
    optimizer_state: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer_state


class Spread(NamedTuple):
    """How evenly a run can be spread at best.

    Attributes:
        num_devices: That there are.
        parameters: Devices that share parameters.
        gradients: That share gradients.
        optimizer_state: That share the optimizer's state.
        is_offloaded: Whether state and gradients are kept on the host between their uses.
        parameters_away: Bytes of all parameters that blocks keep there, of one copy of the model.
        cut: Devices that have pieces of one copy, as stages of a pipeline and what ``tp`` cuts are.
    """

    num_devices: int
    parameters: int
    gradients: int
    optimizer_state: int
    is_offloaded: bool = False
    parameters_away: int = 0
    cut: int = 1


def spread_of(
    num_devices: int, zero: int | None, *, replicas: int, offload: str, cut: int = 1
) -> Spread:
    """Say how a stage of ZeRO spreads what there is; of none, as evenly as can be.

    ``zero``: the stage that was asked for; None: any. ``offload``: what is kept on the host, as
    people type it. ``cut``: devices that have pieces of one copy of the model.
    """
    shards = max(1, num_devices // (replicas * cut))
    least = 3 if zero is None else zero
    return Spread(
        num_devices,
        parameters=cut * (shards if least == 3 else 1),  # noqa: PLR2004 - ZeRO-3
        gradients=cut * (shards if least >= 2 else 1),  # noqa: PLR2004 - ZeRO-2
        optimizer_state=cut * (shards if least >= 1 else 1),
        is_offloaded="optimizer" in offload or "parameters" in offload,
        cut=cut,
    )


def least_bytes(job: Job, num_parameters: int, *, is_early: bool = False) -> Least:
    """Count what there is at least, of all devices together.

    ``job``: what is trained; it needs no formula, and its model no layout. ``is_early``: whether
    each gradient is used inside the backward pass, and dropped as it comes.
    """
    if is_early:
        return least_bytes(job, num_parameters)._replace(gradients=0)
    if has_layout(job.model):
        whole = states(job, update_of(job, CUDA))
        held = int(whole.parameters + whole.constants)
        beside = least_of_whole(job)
        return Least(
            held + beside.parameters,
            int(whole.gradients) + beside.gradients,
            int(whole.optimizer_state) + beside.optimizer_state,
        )
    if job.adapter is not None:
        usual, base = RECIPES[job.precision].parameter, job.adapter.base
        if base not in _PACKED_BYTES:
            return Least(num_parameters * usual, 0, 0)
        left = min(num_parameters, _num_unpacked(job))
        packed = (num_parameters - left) * _PACKED_BYTES[base]
        return Least(int(packed + left * _UNPACKED_BYTES), 0, 0)
    recipe = trained_recipe(job)
    by_number = OPTIMIZERS[job.optimizer].keeps_by_number
    kept = update_of(job, CUDA, [Updated((num_parameters,))]).kept if by_number else 0
    return Least(num_parameters * recipe.parameter, num_parameters * recipe.gradient, int(kept))


def _num_unpacked(job: Job) -> int:
    """Count what no format of a base packs: the embedding, and the head where it is another."""
    model = job.model
    has_head = not model.tied_embeddings and job.task in {"causal-lm", "chat"}
    return model.vocab_size * model.hidden_size * (1 + has_head)


def blocks_away_bytes(job: Job, least: Least, offload: str) -> int:
    """Count what blocks keep on the host of their parameters, at the most, of one copy.

    ``offload``: what is kept on the host, as people type it.
    """
    if "parameters" not in offload or not job.model.num_layers:
        return 0
    away = away_of(offload, num_layers=job.model.num_layers).parameters
    stays = min(least.parameters, int(_num_unpacked(job) * _UNPACKED_BYTES))
    return -(-(least.parameters - stays) * away // job.model.num_layers)


def least_of_whole(job: Job) -> Least:
    """Count what modules of the model's own take that train beside adapters; nothing of none.

    What trains are copies: PEFT's ``ModulesToSaveWrapper`` keeps the originals beside them.

    ``job``: what is trained, of a model that has a layout.
    """
    count = num_whole(job)
    if not count:
        return Least(0, 0, 0)
    recipe = trained_recipe(job)
    by_number = OPTIMIZERS[job.optimizer].keeps_by_number
    kept = update_of(job, CUDA, [Updated((count,))]).kept if by_number else 0
    return Least(count * recipe.parameter, count * recipe.gradient, int(kept))


def least_on_device(least: Least, spread: Spread) -> Least:
    """Return the part of one device, what is kept on the host left out."""
    return Least(
        -(-max(0, least.parameters - spread.parameters_away) // spread.parameters),
        0 if spread.is_offloaded else -(-least.gradients // spread.gradients),
        0 if spread.is_offloaded else -(-least.optimizer_state // spread.optimizer_state),
    )


def least_flops_per_token(job: Job, num_parameters: int) -> float | None:
    """Count the matrix products of one token of training; None where nobody knows how many.

    Two operations for every weight that multiplies in the forward pass, two for what is handed
    back to the block before, two for the gradients of what trains (Kaplan et al. 2020,
    arXiv:2001.08361). Attention's own products and what checkpoints compute again are left out. Of
    a mixture only the experts that a token is sent to multiply.
    """
    model = job.model
    is_mixture = any("expert" in field for field in model.hf_config)
    active = _num_active(model) if is_mixture else num_parameters
    if active is None or job.task not in _COUNTED_TASKS:
        return None
    is_looked_up = job.task == "sequence-classification" or not model.tied_embeddings
    multiplied = active - is_looked_up * model.vocab_size * model.hidden_size
    return 2.0 * multiplied * (2 if job.adapter is not None else 3)


def _num_active(model: ModelSpec) -> int | None:
    """Count the parameters of a mixture that one token uses; None: nobody has listed them."""
    try:
        return active_parameters(model)
    except UnsupportedError:
        return None


_COUNTED_TASKS: frozenset[Task] = frozenset({"causal-lm", "chat", "sequence-classification"})
