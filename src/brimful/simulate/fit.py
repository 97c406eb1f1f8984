"""Finding the formula of a size: which product of dimensions gives it at every shape."""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from math import prod

from brimful.cost.profiles import Dimensions, Term

TOKEN_FACTORS = ("", "B", "S", "BS", "SS", "BSS", "C", "n", "r")
WIDTH_FACTORS = (
    "", "D", "A", "K", "H", "F", "V", "AD", "KD", "HH", "HF", "HAD", "HKD", "HV", "HP",
    "R", "RH", "RF", "RAD", "RKD", "E", "EH", "EHM", "T", "TH", "TM", "THM",
    "M", "HM", "e", "eHM",
)  # fmt: skip
DENOMINATORS = frozenset({1, 2, 4, 8, 16, 32, 64})
"""Halves of halves happen (rotary halves, packed bits); a fifth would be a chunk in disguise."""
MAX_COEFFICIENT = 4096
_WEIGHTS: tuple[tuple[Term, ...], ...] = (
    *((Term(name, count),) for name in ("HF", "HAD", "HKD", "HH") for count in (1, 2, 3)),
    (Term("HAD", 1), Term("HKD", 2)),
)
"""Matrices of linear layers; several that are one, such as queries, keys and values."""
_SCALES = ((64, 1), (64, 4), (64 * 256, 4))
"""Weights in 4 bits that share a scale, of a byte or in fp32, and that share a scale of scales."""


def value(factors: str, dims: Dimensions) -> int:
    """Multiply the dimensions named in ``factors``."""
    return prod(getattr(dims, name) for name in factors)


@cache
def _candidates(shapes: tuple[Dimensions, ...]) -> dict[str, tuple[int, ...]]:
    """Every product of a token factor and a width factor, at every shape; simple ones first.

    A chunk is a fifth of the tokens in every trace, so what is a product of B and S with a whole
    coefficient must not be taken for five times C: products with C come last.
    """
    names = [t + w for t in TOKEN_FACTORS for w in WIDTH_FACTORS]
    names.sort(key=lambda name: ("C" in name, len(name)))
    values = {name: tuple(value(name, dims) for dims in shapes) for name in names}
    return {name: sizes for name, sizes in values.items() if all(sizes)}


@cache
def fit_size(sizes: tuple[int, ...], shapes: tuple[Dimensions, ...]) -> tuple[Term, ...]:
    """Find the formula of a quantity.

    ``shapes``: the dimensions, so different from each other that no two products agree on all.
    Returns one term, or two where it is a sum of two. Raises ValueError: no product, and no sum of
    two, gives the sizes exactly.
    """
    if not any(sizes):
        return ()
    for name, values in _candidates(shapes).items():
        coefficient = _ratio(sizes, values)
        if coefficient is not None:
            return (Term(name, float(coefficient)),)
    return _fit_scales(sizes, shapes) or _fit_pair(sizes, shapes)


def _fit_scales(sizes: tuple[int, ...], shapes: tuple[Dimensions, ...]) -> tuple[Term, ...]:
    """Find of which matrix a quantity is the scales; the last block may not be a whole one."""
    for (block, num_bytes), weight in product(_SCALES, _WEIGHTS):
        counts = [sum(t.coefficient * value(t.factors, dims) for t in weight) for dims in shapes]
        if all(s == num_bytes * -(-count // block) for s, count in zip(sizes, counts, strict=True)):
            return tuple(Term(t.factors, t.coefficient * num_bytes / block) for t in weight)
    return ()


def _ratio(sizes: Sequence[int], values: Sequence[int]) -> Fraction | None:
    first = Fraction(sizes[0], values[0])
    if first.denominator not in DENOMINATORS or abs(first) > MAX_COEFFICIENT:
        return None
    same = all(s * first.denominator == first.numerator * v for s, v in zip(sizes, values))  # noqa: B905
    return first if same else None


def _fit_pair(sizes: tuple[int, ...], shapes: tuple[Dimensions, ...]) -> tuple[Term, ...]:
    (s0, s1), candidates = sizes[:2], _candidates(shapes)
    for (name_a, a), (name_b, b) in combinations(candidates.items(), 2):
        determinant = a[0] * b[1] - a[1] * b[0]
        if determinant == 0:
            continue
        x = Fraction(s0 * b[1] - s1 * b[0], determinant)
        y = Fraction(a[0] * s1 - a[1] * s0, determinant)
        if not {x.denominator, y.denominator} <= DENOMINATORS or min(x, y) <= 0:
            continue
        if max(x, y) > MAX_COEFFICIENT:
            continue
        if all(x * p + y * q == s for p, q, s in zip(a, b, sizes)):  # noqa: B905
            return Term(name_a, float(x)), Term(name_b, float(y))
    raise ValueError(f"no product of dimensions gives the sizes {sizes}")


def add_terms(many: Sequence[tuple[Term, ...]]) -> tuple[Term, ...]:
    """Sum formulas, collecting equal products."""
    total: dict[str, float] = {}
    for terms in many:
        for term in terms:
            total[term.factors] = total.get(term.factors, 0.0) + term.coefficient
    return tuple(Term(name, total[name]) for name in sorted(total) if total[name])
