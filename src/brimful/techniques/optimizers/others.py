"""Optimizers of other programs that no part of this version runs: what each keeps, in one table.

What they keep for each parameter is known, and so between which of ours they lie. One of ours that
takes as many bytes stands for it; where none does, one takes no less and one no more. Both are
found by comparing state, and what an update has beside it, on a few parameters of which no one is
more than a third of all (``SAMPLE``), as in models whose table of embeddings is as large as that.

To add one, add a row to ``OTHERS``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from brimful.techniques.optimizers.base import (
    FP32_BYTES,
    STEP,
    Kept,
    Optimizer,
    Settings,
    State,
    StateType,
    Updated,
)

BLOCK, LEAST = 256, 4096
"""bitsandbytes: values that share a scale, and the smallest tensor that is quantised."""
TABLE = Updated((8192, 4096))
SAMPLE = (
    TABLE,
    Updated((4096, 4096)),
    Updated((4096, 4096)),
    Updated((2048, 16384)),
    Updated((512, 3, 14, 14)),
    Updated((8192,)),
    Updated((64,)),
)
"""A table of embeddings, three matrices, a kernel of a convolution, and two vectors."""
NO_MOMENTUM = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """One of them.

    Attributes:
        words: As it is typed.
        keeps: What its state is, in words.
        source: Where that was read.
        state: Returns what is kept of a parameter.
        beside: The fewest and the most copies of a parameter that its update has at once, in fp32
            where the state is, else in the type of the parameter.
        of_all: Whether they are of all parameters at once; else of one after the other.
        early: Whether it updates inside the backward pass, so that gradients of all are never
            there.
        grows: Whether it may keep more than is said here.
        at_most: Returns the most that is kept, where it hangs on settings of its own; None: the
            same as ``state``.
    """

    words: tuple[str, ...]
    keeps: str
    source: str
    state: State
    beside: tuple[int, int] = (0, 0)
    of_all: bool = False
    early: bool = False
    grows: bool = False
    at_most: State | None = None


class Ours(NamedTuple):
    """An optimizer of ours as it is asked for.

    Attributes:
        name: Its name.
        beta1: Its momentum, where it has to be this one; None: any.
        early: Whether it updates inside the backward pass.
    """

    name: str
    beta1: float | None = None
    early: bool = False


class Bounds(NamedTuple):
    """Between which of ours another one lies.

    Attributes:
        lower: Takes no more; None: nothing is known that does.
        upper: Takes no less; None: none does. The same as ``lower``: as many bytes.
        keeps_same: Whether the lower one keeps as many, and updates with less beside them.
    """

    lower: Ours | None
    upper: Ours | None
    keeps_same: bool = False


def numbers(num: int, kind: StateType = "same") -> State:
    """Keep so many numbers for each of a parameter."""

    def state(parameter: Updated, _settings: Settings) -> tuple[Kept, ...]:
        return tuple(Kept(f"{each}", parameter.shape, kind) for each in range(num))

    return state


def in_8_bits(num: int, scales: int) -> State:
    """Keep so many bytes for each number of what bitsandbytes quantises, and scales of blocks."""

    def state(parameter: Updated, settings: Settings) -> tuple[Kept, ...]:
        if parameter.num < LEAST:
            return numbers(num, "fp32")(parameter, settings)
        blocks = (-(-parameter.num // BLOCK) * scales,)
        return *numbers(num, "uint8")(parameter, settings), Kept("absmax", blocks, "fp32")

    return state


def paged(state: State) -> State:
    """Keep the same in managed memory, but for what is small."""

    def kept(parameter: Updated, settings: Settings) -> tuple[Kept, ...]:
        is_paged = parameter.num >= 100_000  # noqa: PLR2004 - ``get_state_buffer``
        return tuple(
            each._replace(is_paged=is_paged and each.key != "absmax")
            for each in state(parameter, settings)
        )

    return kept


def on_host(state: State) -> State:
    """Keep the same on the host."""

    def kept(parameter: Updated, settings: Settings) -> tuple[Kept, ...]:
        return tuple(each._replace(on_host=True) for each in state(parameter, settings))

    return kept


def by_sides(num: int, factors: int, kind: StateType = "same") -> State:
    """Keep so many numbers for each, and means of rows and columns so many times.

    A vector has one number for each in the place of a row and a column.
    """

    def state(parameter: Updated, settings: Settings) -> tuple[Kept, ...]:
        shape = parameter.shape
        whole = numbers(num, kind)(parameter, settings)
        if len(shape) <= 1:
            return *whole, Kept("squares", shape, kind)
        sides = prod(shape[:-1]) + prod((*shape[:-2], shape[-1]))
        return *whole, Kept("sides", (factors * sides,), kind)

    return state


def with_factors(num: int, largest: int) -> State:
    """Keep numbers, and for each side of a matrix that is not larger two squares of it."""

    def state(parameter: Updated, settings: Settings) -> tuple[Kept, ...]:
        sides = parameter.shape if len(parameter.shape) > 1 else ()
        squares = sum(2 * side**2 for side in sides if side <= largest)
        return *numbers(num)(parameter, settings), Kept("factors", (squares,))

    return state


def for_matrices(num: int) -> State:
    """Keep so many numbers for each of a matrix, and two moments of all else."""

    def state(parameter: Updated, settings: Settings) -> tuple[Kept, ...]:
        return numbers(num if len(parameter.shape) > 1 else 2)(parameter, settings)

    return state


def of_few_ranks(parameter: Updated, settings: Settings) -> tuple[Kept, ...]:
    """Keep two moments of a quarter of a matrix's shorter side, and what projects on it.

    A table keeps its own: targets are linear layers. A quarter is the largest rank in use.
    """
    if len(parameter.shape) <= 1 or parameter == TABLE:
        return numbers(2)(parameter, settings)
    long, short = parameter.num // min(parameter.shape), min(parameter.shape)
    rank = -(-short // 4)
    return Kept("moments", (2, rank, long)), Kept("projection", (rank, short))


_BNB = "``bitsandbytes/optim/optimizer.py``"
OTHERS = (
    Other(words=("lion",), keeps="one number a parameter",
          source="``lion_pytorch/lion_pytorch.py`` 0.2.5",
          state=numbers(1), beside=(0, 2)),
    Other(words=("lion-32bit", "rmsprop-bnb", "rmsprop-bnb-32bit", "lars"),
          keeps="one number a parameter in fp32", source=_BNB, state=numbers(1, "fp32")),
    Other(words=("lion-8bit", "rmsprop-bnb-8bit"), keeps="one number a parameter in 8 bits",
          source=_BNB, state=in_8_bits(1, 1)),
    Other(words=("paged-lion", "paged-lion-32bit"),
          keeps="one number a parameter in fp32, in managed memory", source=_BNB,
          state=paged(numbers(1, "fp32"))),
    Other(words=("paged-lion-8bit",), keeps="one number a parameter in 8 bits, in managed memory",
          source=_BNB, state=paged(in_8_bits(1, 1))),
    Other(words=("ademamix", "ademamix-32bit"), keeps="three numbers a parameter in fp32",
          source="``bitsandbytes/optim/ademamix.py``", state=numbers(3, "fp32")),
    Other(words=("ademamix-8bit",), keeps="three numbers a parameter in 8 bits",
          source="``bitsandbytes/optim/ademamix.py``", state=in_8_bits(3, 3)),
    Other(words=("paged-ademamix", "paged-ademamix-32bit"),
          keeps="three numbers a parameter in fp32, in managed memory",
          source="``bitsandbytes/optim/ademamix.py``", state=paged(numbers(3, "fp32"))),
    Other(words=("paged-ademamix-8bit",),
          keeps="three numbers a parameter in 8 bits, in managed memory",
          source="``bitsandbytes/optim/ademamix.py``", state=paged(in_8_bits(3, 3))),
    Other(words=("adagrad", "rmsprop"), keeps="one number a parameter",
          source="``_multi_tensor_adagrad`` and ``_multi_tensor_rmsprop`` of ``torch/optim``",
          state=numbers(1), beside=(0, 2), of_all=True),
    Other(words=("adadelta", "adamax", "nadam", "radam"), keeps="two numbers a parameter",
          source="``_multi_tensor_*`` of ``torch/optim``",
          state=numbers(2), beside=(0, 3), of_all=True),
    Other(words=("schedule-free", "schedule-free-adamw", "schedulefree", "schedule-free-radam"),
          keeps="two numbers a parameter",
          source="``schedulefree/adamw_schedulefree.py`` 1.4.1",
          state=numbers(2), beside=(1, 1), of_all=True),
    Other(words=("schedule-free-sgd",), keeps="one number a parameter",
          source="``schedulefree/sgd_schedulefree.py`` 1.4.1", state=numbers(1)),
    Other(words=("stable-adamw",), keeps="two numbers a parameter, and one more of 16-bit ones",
          source="``optimi/stableadamw.py`` of torch-optimi 0.3.3",
          state=lambda each, settings: numbers(2 + (settings.num_bytes < FP32_BYTES))(
              each, settings),
          beside=(0, 2), of_all=True),
    Other(words=("adamw-anyprecision",), keeps="two numbers a parameter in fp32",
          source="``trainer_optimizer.py`` of transformers; ``AnyPrecisionAdamW`` of torchdistX",
          state=numbers(2, "fp32"), beside=(0, 2)),
    Other(words=("adopt", "adopt-adamw"), keeps="two numbers a parameter",
          source="Taniguchi et al. 2024, arXiv:2411.02853, algorithm 2",
          state=numbers(2), beside=(0, 3), of_all=True),
    Other(words=("lamb",), keeps="two numbers a parameter",
          source="You et al. 2020, arXiv:1904.00962, algorithm 2", state=numbers(2), beside=(0, 3)),
    Other(words=("sophia", "sophiag"), keeps="two numbers a parameter",
          source="Liu et al. 2023, arXiv:2305.14342, algorithm 3", state=numbers(2), beside=(0, 3)),
    Other(words=("adam-mini",), keeps="one number a parameter, and one for each row or head",
          source="``adam_mini/adam_mini.py`` 1.1.1",
          state=lambda each, settings: (*numbers(1)(each, settings), Kept("v", each.shape[:1])),
          beside=(0, 2)),
    Other(words=("grokadamw",), keeps="three numbers a parameter on the host",
          source="``grokadamw.py`` 0.1.2", state=on_host(numbers(3)), beside=(0, 7)),
    Other(words=("adan",), keeps="four numbers a parameter",
          source="Xie et al. 2022, arXiv:2208.06677; ``adan_pytorch/adan.py`` 0.1.0",
          state=numbers(4), beside=(0, 3)),
    Other(words=("dadapt-adam",), keeps="three numbers a parameter",
          source="Defazio and Mishchenko 2023, arXiv:2301.07733, algorithm 5",
          state=numbers(3), beside=(0, 3)),
    Other(words=("prodigy",), keeps="four numbers a parameter",
          source="``prodigyopt/prodigy.py`` 1.1.2", state=numbers(4), beside=(0, 2)),
    Other(words=("came",), keeps="one number a parameter, and two means of rows and columns",
          source="``came_pytorch/CAME.py`` 0.1.3", state=by_sides(1, 2), beside=(0, 4)),
    Other(words=("sm3",), keeps="the largest squares of rows and columns",
          source="Anil et al. 2019, arXiv:1901.11150, algorithm SM3-II",
          state=by_sides(0, 1), beside=(0, 3)),
    Other(words=("adalomo",), keeps="means of rows and columns, updated in the backward pass",
          source="``lomo_optim/adalomo.py`` 0.1.1", state=by_sides(0, 1, "fp32"), beside=(1, 3),
          early=True),
    Other(words=("lomo",), keeps="nothing, updated in the backward pass",
          source="``lomo_optim/lomo.py`` 0.1.1", state=numbers(0, "fp32"), beside=(1, 2),
          early=True),
    Other(words=("signsgd",), keeps="nothing", source="Bernstein et al. 2018, arXiv:1802.04434",
          state=numbers(0), beside=(0, 1)),
    Other(words=("signum",), keeps="one number a parameter",
          source="Bernstein et al. 2018, arXiv:1802.04434", state=numbers(1), beside=(0, 1)),
    Other(words=("adamuon",), keeps="two numbers a parameter",
          source="Si et al. 2025, arXiv:2507.11005", state=numbers(2), beside=(1, 4)),
    Other(words=("normuon",),
          keeps="a momentum of matrices and one number for each row, two moments of all else",
          source="Li et al. 2025, arXiv:2510.05491, algorithm 1",
          state=lambda each, settings: (
              *for_matrices(1)(each, settings),
              Kept("rows", each.shape[: len(each.shape) > 1])),
          beside=(1, 4)),
    Other(words=("dion",), keeps="a momentum and a factor of matrices, two moments of all else",
          source="Ahn et al. 2025, arXiv:2504.05295", state=for_matrices(1), grows=True),
    Other(words=("apollo", "apollo-adamw", "apollo-mini"),
          keeps="two moments in a random subspace of each matrix",
          source="Zhu et al. 2024, arXiv:2412.05270; ``apollo_torch/apollo.py`` 1.0.3",
          state=numbers(0), at_most=of_few_ranks, beside=(2, 4)),
    Other(words=("apollo-adamw-layerwise",),
          keeps="two moments in a random subspace of each matrix, updated in the backward pass",
          source="Zhu et al. 2024, arXiv:2412.05270; ``apollo_torch/apollo.py`` 1.0.3",
          state=numbers(0), at_most=of_few_ranks, beside=(2, 4), early=True),
    Other(words=("badam",), keeps="two moments and a wide copy of the block that trains",
          source="Luo et al. 2024, arXiv:2404.02827, algorithm 1", state=numbers(0),
          at_most=lambda each, _: (Kept("block", (3, *each.shape), "fp32"),),
          beside=(0, 3), early=True),
    Other(words=("galore", "galore-adamw"), keeps="two moments in a subspace of each matrix",
          source="Zhao et al. 2024, arXiv:2403.03507; ``galore_torch`` 1.0",
          state=numbers(0), beside=(2, 2), grows=True),
    Other(words=("galore-adafactor", "galore-adamw-8bit", "q-galore"),
          keeps="moments in a subspace of each matrix",
          source="Zhao et al. 2024, arXiv:2403.03507; ``galore_torch`` 1.0",
          state=numbers(0), beside=(2, 2), grows=True),
    Other(words=("galore-adafactor-layerwise", "galore-adamw-8bit-layerwise",
                 "galore-adamw-layerwise"),
          keeps="moments in a subspace of each matrix, updated in the backward pass",
          source="Zhao et al. 2024, arXiv:2403.03507; ``galore_torch`` 1.0",
          state=numbers(0), beside=(2, 2), grows=True, early=True),
    Other(words=("soap",), keeps="two numbers a parameter, and two squares for each side",
          source="Vyas et al. 2024, arXiv:2409.11321; ``soap.py``, ``max_precond_dim``",
          state=with_factors(2, 10_000), beside=(0, 3), grows=True),
    Other(words=("kron", "shampoo"), keeps="matrices for each side of a parameter",
          source="Gupta et al. 2018, arXiv:1802.09568; Li 2015, arXiv:1512.04202",
          state=numbers(0), grows=True),
)  # fmt: skip
"""In groups of what is alike."""


def bounds(other: Other, ours: Sequence[Optimizer], settings: Sequence[Settings]) -> Bounds:
    """Find between which of ours another lies, whichever of some settings are the job's."""
    fewest, num = other.beside
    least = [_taken(other, other.state, each, fewest) for each in settings]
    most = [_taken(other, other.at_most or other.state, each, num) for each in settings]
    found = [(asked, rule, [_taken_by(rule, asked, each) for each in settings])
             for rule, asked in _asked(ours, early=other.early)]  # fmt: skip
    lower, upper, keeps_same, is_paged = None, None, False, False
    pages = least[0].held != least[0].kept
    for asked, rule, its in sorted(found, key=lambda each: each[2][0].order):
        above = all(map(_Taken.is_within, most, its)) and not other.grows
        below = all(map(_Taken.is_within, its, least))
        if above and below:
            return Bounds(asked, asked)
        if below and _runs_anywhere(rule):
            lower, keeps_same = (
                asked,
                not (other.grows or other.at_most) and all(map(_Taken.keeps_as, its, least)),
            )
        if above and (upper is None or (pages and rule.pages and not is_paged)):
            upper, is_paged = asked, rule.pages
    return Bounds(lower, upper, keeps_same)


def _asked(ours: Sequence[Optimizer], *, early: bool) -> Iterator[tuple[Optimizer, Ours]]:
    """Yield what of ours may be compared: what tells no places apart and updates shards."""
    for rule in ours:
        if not rule.tells_hidden and rule.shards != "none":
            yield rule, Ours(rule.name)
            if rule.is_momentum:
                yield rule, Ours(rule.name, NO_MOMENTUM)
                if early:
                    yield rule, Ours(rule.name, NO_MOMENTUM, early=True)


def _runs_anywhere(rule: Optimizer) -> bool:
    """Whether a rule keeps no strategy from being searched, which would take less."""
    return rule.zero1 and rule.masters and rule.pipeline


class _Taken(NamedTuple):
    """What updating parameters of ``SAMPLE`` takes, all in bytes.

    Attributes:
        kept: On the GPU, of each parameter.
        held: The same, and in managed memory.
        most: On the GPU while it updates, gradients too.
        held_most: The same, and in managed memory.
    """

    kept: tuple[int, ...]
    held: tuple[int, ...]
    most: int
    held_most: int

    @property
    def order(self) -> tuple[int, int]:
        """Compare rules that take more or less: by what they hold, and what there is most."""
        return sum(self.held), self.held_most

    def keeps_as(self, other: "_Taken") -> bool:
        """Whether the other keeps as much, wherever."""
        return (self.kept, self.held) == (other.kept, other.held)

    def is_within(self, other: "_Taken") -> bool:
        """Whether the other takes no less of anything."""
        pairs = zip((*self.kept, *self.held), (*other.kept, *other.held), strict=True)
        return (
            all(mine <= its for mine, its in pairs)
            and self.most <= other.most
            and self.held_most <= other.held_most
        )


def _of_sample(state: State, settings: Settings, most: int) -> _Taken:
    """Add up what is kept, and what there is most beside it and the parameters."""
    kept, held = list[int](), list[int]()
    for parameter in SAMPLE:
        found = [
            each for each in state(parameter, settings) if each.key != STEP and not each.on_host
        ]
        held.append(sum(each.num_bytes(settings.num_bytes) for each in found))
        kept.append(held[-1] - sum(each.num_bytes(settings.num_bytes)
                                   for each in found if each.is_paged))  # fmt: skip
    return _Taken(tuple(kept), tuple(held), sum(kept) + most, sum(held) + most)


def _taken(other: Other, state: State, settings: Settings, num: int) -> _Taken:
    element = settings.num_bytes
    sizes = [each.num * element for each in SAMPLE]
    kinds = {kept.type for each in SAMPLE for kept in state(each, settings)}
    wide = FP32_BYTES // element if kinds - {"same"} else 1
    copies = num * wide * (sum(sizes) if other.of_all else max(sizes))
    gradients = max(sizes) if other.early else sum(sizes)
    return _of_sample(state, settings, copies + gradients)


def _taken_by(rule: Optimizer, asked: Ours, settings: Settings) -> _Taken:
    settings = settings if asked.beta1 is None else settings._replace(momentum=asked.beta1)
    sizes = [each.num * settings.num_bytes for each in SAMPLE]
    if not asked.early:
        beside = max(moment.num_bytes for moment in rule.moments(SAMPLE, settings))
        return _of_sample(rule.state, settings, beside + sum(sizes))
    # Each parameter is updated alone, beside its gradient.
    beside = max(
        moment.num_bytes + num_bytes
        for each, num_bytes in zip(SAMPLE, sizes, strict=True)
        for moment in rule.moments([each], settings)
    )
    return _of_sample(rule.state, settings, beside)


def squeezed(word: str) -> str:
    """Return a name without what parts its words, by which spellings of others are found."""
    return word.lower().replace("_", "").replace("-", "")


SQUEEZED = {squeezed(word): word for other in OTHERS for word in other.words}
"""Their names as they are typed, by the same without what parts words."""
