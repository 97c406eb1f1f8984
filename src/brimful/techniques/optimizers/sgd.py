"""torch's SGD with momentum, fused for fp32 parameters.

    b <- momentum b + (g + decay w)
    w <- w - rate b

State: one buffer in the type of the parameter; none where the momentum is 0. The first update
copies the gradient, and momentum x 0 + gradient is that. As in torch, decay is added to the
gradient, so that with momentum it builds up there (it is not decoupled).
"""

from collections.abc import Iterator, Sequence

from brimful.techniques.optimizers.base import (
    FP32_BYTES,
    Kept,
    Moment,
    Optimizer,
    Settings,
    Spelled,
    Updated,
)


def _state(parameter: Updated, settings: Settings) -> tuple[Kept, ...]:
    return (Kept("momentum_buffer", parameter.shape),) if settings.momentum > 0 else ()


def _moments(parameters: Sequence[Updated], settings: Settings) -> Iterator[Moment]:
    """16-bit values are updated one parameter after another (``build/optimizers/sgd.py``).

    Each matrix stands beside its gradient with the decay added; without momentum its predecessor's
    is still bound (``_single_tensor_sgd`` in ``torch/optim/sgd.py``).
    """
    if settings.num_bytes == FP32_BYTES:
        yield Moment()
        return
    decays = settings.decay > 0
    added = [
        each.num * settings.num_bytes * (decays and len(each.shape) > 1) for each in parameters
    ]
    before = [0] * len(added) if settings.momentum > 0 else [0, *added]
    pairs = zip(before, added, strict=False)
    yield from [Moment((now,), bound) for bound, now in pairs if now] or [Moment()]


SGD = Optimizer(
    name="sgd",
    words="SGD",
    keeps="momentum",
    source="``torch/optim/sgd.py``",
    state=_state,
    moments=_moments,
    rates=frozenset({"beta1"}),
    is_momentum=True,
    shards="local",
    on_host=True,
    deepspeed_engine=True,
    transformers=Spelled("sgd", "beta1", "the Trainer's SGD has no momentum", is_same=False),
    deepspeed=Spelled("SGD", reads=("sgd",)),
)
