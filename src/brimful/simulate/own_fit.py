"""Finding the formula of a size at a model's own widths: products of sequences, tokens, chunks.

Widths are numbers here, so that few products are left: each is solved for at one shape or two, and
has to hold at those that it was not solved at.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations
from math import isqrt
from typing import NamedTuple

from brimful.cost.profiles import Term


class NoProductError(ValueError):
    """No formula of sequences and tokens gives a size at every shape."""


Formulas = dict[tuple[int, ...], tuple[Term, ...]]
FACTORS = ("", "BS", "C", "S", "B", "SS", "BSS")
"""Products that sizes may be of, likely ones first."""


class TokenShape(NamedTuple):
    """What a micro-batch is made of.

    Attributes:
        B: Sequences.
        S: Tokens of each.
        num_chunks: Chunks of the loss.
        chunk: Tokens of each but the last, where they are cut by another rule than as evenly as may
            be; 0: they are not.
    """

    B: int
    S: int
    num_chunks: int = 1
    chunk: int = 0

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a chunk of the loss."""
        return self.chunk or -(-self.B * self.S // self.num_chunks)

    @property
    def last_tokens(self) -> int:
        """Tokens of the last, which may be smaller."""
        return self.B * self.S - (self.num_chunks - 1) * self.chunk_tokens

    def num_bytes(self, terms: tuple[Term, ...]) -> int:
        """Evaluate a formula where all chunks of the loss are of one size."""
        values = {name: next(_values(name, [self]))[0] for name in FACTORS}
        return round(sum(term.coefficient * values[term.factors] for term in terms))


class OwnFit:
    """Finds formulas at some shapes.

    Of one sequence several products are one number at every shape; the first of ``FACTORS`` is
    taken, whatever the size, so that a tensor goes by the formula by which it came.
    """

    def __init__(self, shapes: Sequence[TokenShape], known: Formulas | None = None) -> None:
        """Compute every product at every shape.

        ``shapes``: three, or two at which nothing is left to hold: then sums of two products are
        those that are known. ``known``: formulas by what they give at shapes of which these are the
        first.
        """
        self._products = _products(shapes)
        self._tokens = [shape.S for shape in shapes]
        self._sequences = [shape.B for shape in shapes]
        num = len(shapes)
        self._sums = num > 2  # noqa: PLR2004 - two are solved for
        self.known: Formulas = _told_by(num, known or {})

    def __call__(self, sizes: tuple[int, ...]) -> tuple[Term, ...]:
        """Return the formula of a quantity.

        Raises NoProductError: no product, sum of two, square over tokens or line over fewer tokens
        gives the sizes exactly.
        """
        if sizes not in self.known:
            self.known[sizes] = self._fitted(sizes)
        return self.known[sizes]

    def _fitted(self, sizes: tuple[int, ...]) -> tuple[Term, ...]:
        if not any(sizes):
            return ()
        for name, values in self._products:
            coefficient = Fraction(sizes[0], values[0])
            if all(coefficient * v == s for v, s in zip(values, sizes, strict=True)):
                return (Term(name, float(coefficient)),)
        pairs = combinations(self._products, 2) if self._sums else ()
        for (name_a, a), (name_b, b) in pairs:
            found = _pair(sizes, a, b)
            if found is not None and name_a != name_b:
                return Term(name_a, float(found[0])), Term(name_b, float(found[1]))
        if self._sums:
            for rows, name in (((1,) * len(sizes), ""), (self._sequences, "B")):
                if (square := _square(sizes, rows, self._tokens)) is not None:
                    times, more = square
                    return (
                        Term(f"{name}SS", float(times)),
                        Term(f"{name}S", float(2 * times * more)),
                        Term(name, float(times * more**2)),
                    )
                if (line := _shorter(sizes, rows, self._tokens)) is not None:
                    times, fewer = line
                    return Term(f"{name}S", float(times)), Term(name, float(-times * fewer))
        raise NoProductError(f"no products of sequences and tokens give the sizes {sizes}")


def _square(
    sizes: Sequence[int], rows: Sequence[int], tokens: Sequence[int]
) -> tuple[Fraction, Fraction] | None:
    """Find a square over tokens and a few more, as a scan over one more chunk than there are has.

    Returns how often it makes up each row's part, and how many more tokens; None where it does not.
    """
    each = [Fraction(size, num) for size, num in zip(sizes, rows, strict=True)]
    side = _root(each[1] / each[0]) if each[0] else None
    if side is None or side == 1:
        return None
    more = (tokens[1] - side * tokens[0]) / (side - 1)
    times = each[0] / (tokens[0] + more) ** 2 if tokens[0] + more else Fraction(0)
    holds = all(times * (n + more) ** 2 == part for n, part in zip(tokens, each, strict=True))
    return (times, more) if holds and times > 0 else None


def _shorter(
    sizes: Sequence[int], rows: Sequence[int], tokens: Sequence[int]
) -> tuple[Fraction, Fraction] | None:
    """Find a multiple of a few tokens less than there are, as what is shifted by one has.

    Returns how often they make up each row's part, and how many fewer; None where they do not.
    """
    each = [Fraction(size, num) for size, num in zip(sizes, rows, strict=True)]
    if tokens[0] == tokens[1]:
        return None
    times = (each[1] - each[0]) / (tokens[1] - tokens[0])
    fewer = tokens[0] - each[0] / times if times > 0 else Fraction(0)
    holds = all(times * (n - fewer) == part for n, part in zip(tokens, each, strict=True))
    return (times, fewer) if holds and 0 < fewer < min(tokens) else None


def _root(number: Fraction) -> Fraction | None:
    """Return the square root; None where it is no fraction."""
    root = Fraction(isqrt(number.numerator), isqrt(number.denominator))
    return root if root**2 == number else None


def _told_by(num_shapes: int, known: Formulas) -> Formulas:
    """Return formulas by what they give at the first shapes, where these tell them apart."""
    told: dict[tuple[int, ...], set[tuple[Term, ...]]] = {}
    for sizes, terms in known.items():
        told.setdefault(sizes[:num_shapes], set()).add(terms)
    return {sizes: each.pop() for sizes, each in told.items() if len(each) == 1}


def _pair(sizes: Sequence[int], a: Sequence[int], b: Sequence[int]) -> tuple[Fraction, ...] | None:
    """Return how often two products make up a quantity; None where they do not."""
    determinant = a[0] * b[1] - a[1] * b[0]
    if determinant == 0:
        return None
    x = Fraction(sizes[0] * b[1] - sizes[1] * b[0], determinant)
    y = Fraction(a[0] * sizes[1] - a[1] * sizes[0], determinant)
    if min(x, y) <= 0 or any(x * p + y * q != s for p, q, s in zip(a, b, sizes, strict=True)):
        return None
    return x, y


def _products(shapes: Sequence[TokenShape]) -> list[tuple[str, tuple[int, ...]]]:
    """List the products that differ, with what they are at every shape."""
    found: dict[tuple[int, ...], str] = {}
    for name in FACTORS:
        for values in _values(name, shapes):
            found.setdefault(values, name)
    return [(name, values) for values, name in found.items()]


def _values(name: str, shapes: Sequence[TokenShape]) -> Iterator[tuple[int, ...]]:
    """Yield a product at every shape: of a chunk, what it is of any and what it is of the last."""
    if name == "C":
        yield tuple(shape.chunk_tokens for shape in shapes)
        yield tuple(shape.last_tokens for shape in shapes)
        return
    yield tuple((shape.B if "B" in name else 1) * shape.S ** name.count("S") for shape in shapes)
