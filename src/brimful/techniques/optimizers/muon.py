"""torch's Muon for the matrices of blocks, and AdamW beside it for all else.

    b <- momentum b + (1 - momentum) g
    u = orthogonal((1 - momentum) g + momentum b)
    w <- w - rate (decay w + 0.2 root(max(rows, columns)) u)

``orthogonal`` keeps the singular vectors of a matrix and makes its singular values about 1, by five
steps of a quintic Newton-Schulz iteration in bf16. The factor gives ``u`` the root mean square of
an AdamW update, so that one learning rate and one decay serve both. Momentum is torch's own, 0.95,
with Nesterov's look ahead; ``beta1``, ``beta2`` and ``epsilon`` are AdamW's beside it.

Embedding, head, norms and biases are AdamW's, as torch and both sources have it: what they hold is
no map from vectors to vectors. Of a stack of matrices, as experts are, each is orthogonalised by
itself, and its rate is adjusted to its own rows and columns (Moonlight, Kimi K2). It is run on
whole matrices: a shard has not the singular vectors of the matrix. Shards of a stack are whole
matrices, so that nothing of them is gathered, unless devices that part experts cut their rows.

State: a momentum of each matrix, two moments of all else.
"""

from math import prod

from brimful.techniques.optimizers.base import (
    Kept,
    Optimizer,
    Settings,
    Shape,
    Updated,
    counted,
    one_by_one,
)
from brimful.techniques.optimizers.two_moments import moments_of

NUM_STEPS = 5
_NARROW_BYTES = 2
"""The iteration computes in bf16, whatever the gradient is held in."""


def _state(parameter: Updated, _settings: Settings) -> tuple[Kept, ...]:
    if parameter.is_hidden:
        return (Kept("momentum_buffer", parameter.shape),)
    return counted(on_host=False), *moments_of(parameter)


def _stays(parameter: Updated) -> bool:
    """Whether this device has whole matrices of a stack."""
    return len(parameter.shape) > 2 and parameter.shape[1:] == parameter.whole[1:]  # noqa: PLR2004


def _whole(parameter: Updated) -> Shape:
    """Return the shape of what this device orthogonalises."""
    return parameter.shape if _stays(parameter) or not parameter.whole else parameter.whole


def _beside(parameter: Updated, settings: Settings) -> tuple[int, ...]:
    """What one matrix or stack has at the end of an iteration but the first.

    The gradient looked ahead, which is bound until the iteration ends; what it iterates on, before
    and after; the Gram matrix of its shorter side, and the polynomial of that
    (``_zeropower_via_newtonschulz`` in ``torch/optim/_muon.py``). Of shards what was gathered of
    all devices, in bf16, is bound instead of the gradient. AdamW has nothing.
    """
    if not parameter.is_hidden:
        return ()
    whole = _whole(parameter)
    narrow = prod(whole) * _NARROW_BYTES
    gram = prod(whole[:-2]) * min(whole[-2:]) ** 2 * _NARROW_BYTES
    bound = parameter.num * settings.num_bytes
    if parameter.whole and not _stays(parameter):  # rows of a stack are cut evenly, others padded
        is_stack = len(whole) > 2  # noqa: PLR2004 - of a matrix
        bound = narrow if is_stack else parameter.num * settings.num_shards * _NARROW_BYTES
    return bound, narrow, gram, gram, narrow


def _flops(parameter: Updated, _settings: Settings) -> float:
    """Five times the Gram matrix, its square, and the polynomial times the matrix."""
    if not parameter.is_hidden:
        return 0.0
    whole = _whole(parameter)
    short, long = sorted(whole[-2:])
    return prod(whole[:-2]) * NUM_STEPS * (4.0 * short**2 * long + 2.0 * short**3)


def _gathered_bytes(parameter: Updated) -> int:
    is_piece = bool(parameter.whole) and not _stays(parameter)
    return prod(parameter.whole) * _NARROW_BYTES * (parameter.is_hidden and is_piece)


MUON = Optimizer(
    name="muon",
    words="Muon",
    keeps="a momentum per matrix of a block, two moments of all else",
    source="Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025, "
    "arXiv:2502.16982; ``torch/optim/_muon.py``",
    state=_state,
    moments=one_by_one(_beside),
    flops=_flops,
    gathered_bytes=_gathered_bytes,
    keeps_by_number=False,
    tells_hidden=True,
    shards="gathered",
    on_host=True,
)
