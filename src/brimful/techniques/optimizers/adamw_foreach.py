"""torch's AdamW on whole lists of parameters: many kernels, and one temporary as large as a moment.

The temporary is the root of every second moment at once.

State: two moments in the type of the parameter, and a count of steps on the host.
Source: ``_multi_tensor_adam`` in ``torch/optim/adam.py``, ``exp_avg_sq_sqrt``.
"""

from collections.abc import Iterator, Sequence

from brimful.techniques.optimizers.base import Kept, Moment, Settings, Spelled, Updated, counted
from brimful.techniques.optimizers.two_moments import moments_of, two_moments


def _state(parameter: Updated, _settings: Settings) -> tuple[Kept, ...]:
    return counted(on_host=True), *moments_of(parameter)


def _moments(parameters: Sequence[Updated], settings: Settings) -> Iterator[Moment]:
    yield Moment(tuple(each.num * settings.num_bytes for each in parameters))


_PASSES = 20 / 7
"""Decay (parameters read and written), lerp of the first moment (2 reads, 1 write), mul and addcmul
of the second (5), root, division and sum of the temporary (6), addcdiv (4): 20 tensors pass, of
which one kernel for all passes 7."""

ADAMW_FOREACH = two_moments(
    "adamw-foreach",
    keeps="two moments per parameter",
    source="``_multi_tensor_adam`` in ``torch/optim/adam.py``",
    state=_state,
    moments=_moments,
    passes=_PASSES,
    shards="all",
    on_host=True,
    deepspeed_engine=True,
    transformers=Spelled("adamw_torch", is_same=False),  # another kernel by device
    deepspeed=Spelled("AdamW"),
    titan="foreach",
)
