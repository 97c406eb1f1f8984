"""Bytes, seconds and counts: parsing what people type and printing what they read.

Inside the program a number is in bytes, seconds or plain counts, and its name says which.
GiB and ms exist only where text is read or printed: here.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from brimful.errors import InputError

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
_LABELS = ("g", "gb")
"""Units of labels, which mean GiB: RTX 4090 24GB."""
_WHOLE = 100.0
"""Per cent."""
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][0-9]{1,2})?)\s*([A-Za-z]*)\s*")


def _parse(text: str, units: dict[str, int], what: str, example: str) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in units or math.isinf(float(match[1])):
        raise InputError(f"{text!r} is not {what}; write it like {example}")
    return round(float(match[1]) * units[match[2].lower()])


def parse_bytes(text: str) -> int:
    """Read a size such as ``1.5GiB`` or ``80GB``.

    Args:
        text: A number with an optional unit (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB).

    Returns:
        The size in bytes.

    Raises:
        InputError: The text is not a size.
    """
    return _parse(text, _BYTE_UNITS, "a size", "1.5GiB or 80GB")


class Labelled(int):
    """Bytes of a card as its label says them: 48 GB are 48 GiB, not all of which programs get."""


class Share(float):
    """A part of each card, over 0 up to 1, whatever card that is."""

    def of(self, num_bytes: int) -> int:
        """Return as much of what a card has, 1 byte at the least."""
        return max(1, int(self * num_bytes))


def parse_limit(text: str) -> int | Share:
    """Read a limit of memory: a size such as ``20GiB``, or a part of each card such as ``70%``.

    Args:
        text: As for ``parse_bytes``, or a number before a percent sign.

    Raises:
        InputError: The text is neither, or is no part that leaves something.
    """
    number, is_part, rest = text.strip().partition("%")
    if not is_part:
        return parse_bytes(text)
    match = _QUANTITY.fullmatch(number)
    if rest or match is None or match[2] or not 0 < float(match[1]) <= _WHOLE:
        raise InputError(f"{text!r} is no part of a card; write it like 70%, over 0% up to 100%")
    return Share(float(match[1]) / _WHOLE)


def parse_card_bytes(text: str) -> int:
    """Read the size of a card's memory: ``48GiB`` exactly, ``48GB`` as cards are labelled.

    Args:
        text: As for ``parse_bytes``.

    Returns:
        The size in bytes; ``Labelled`` where it is a label.

    Raises:
        InputError: The text is not a size.
    """
    match = _QUANTITY.fullmatch(text)
    if match is not None and match[2].lower() in _LABELS:
        return Labelled(_parse(text, dict.fromkeys(_LABELS, GIB), "a size", "48GB"))
    return parse_bytes(text)


def parse_count(text: str) -> int:
    """Read a count such as ``300k`` or ``1B`` (K, M, B, T are powers of 1000).

    Args:
        text: A number with an optional unit.

    Returns:
        The count.

    Raises:
        InputError: The text is not a count.
    """
    return _parse(text, _COUNT_UNITS, "a count", "300k or 1B")


BYTES_PER_TOKEN = 4
"""Of English text in today's vocabularies, about; of other languages fewer make a token
(https://help.openai.com/en/articles/4936856-what-are-tokens-and-how-to-count-them)."""


def tokens_of_bytes(text: str) -> int | None:
    """Return about how many tokens a size of plain text such as ``30MB`` makes.

    Args:
        text: As for ``parse_bytes``.

    Returns:
        None where it is no size, as ``30B`` is none, which are billions.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in _BYTE_UNITS or match[2].lower() in _COUNT_UNITS:
        return None
    return parse_bytes(text) // BYTES_PER_TOKEN


def parse_length(text: str) -> int:
    """Read the length of a text, as models are named by it: ``4k`` is 4,096 tokens.

    Args:
        text: A number with an optional unit (K, M: powers of 1024).

    Returns:
        Tokens.

    Raises:
        InputError: The text is not a count.
    """
    return _parse(text, {"": 1, "k": KIB, "m": MIB}, "a length", "4096 or 4k")


_DURATION_UNITS = {"min": 60.0, "h": 3600.0, "d": 86400.0, "days": 86400.0, "w": 604800.0}


def parse_duration(text: str) -> float:
    """Read a duration such as ``48h`` or ``3d``.

    Args:
        text: A number with a unit (min, h, d, w).

    Returns:
        Seconds.

    Raises:
        InputError: The text is no duration, or none is left.
    """
    return _positive(text, _DURATION_UNITS, "a duration", "48h or 3d")


DOLLARS = "usd"
_SIGNS = {"$": DOLLARS, "€": "eur", "£": "gbp"}
_AMOUNT = re.compile(r"([$€£]?)\s*([0-9.]+(?:[eE][0-9]{1,2})?)\s*([A-Za-z]{3}|[$€£])?")


class Money(NamedTuple):
    """An amount of some currency, as somebody typed it.

    Attributes:
        amount: How much.
        currency: Of what: ``usd``, ``eur``.
    """

    amount: float
    currency: str


def parse_money(text: str) -> Money:
    """Read an amount such as ``500usd``, ``$500``, ``500`` (dollars) or ``450eur``.

    Raises:
        InputError: The text is no amount of a currency, or is 0.
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or (match[1] and match[3]):
        raise InputError(f"{text!r} is not a price; write it like 500usd")
    word = (match[1] or match[3] or DOLLARS).lower()
    return Money(_positive(match[2], {"": 1.0}, "a price", "500usd"), _SIGNS.get(word, word))


def parse_rate(text: str) -> Money:
    """Read what one of another currency is worth: ``eur=1.08`` dollars.

    Raises:
        InputError: The text is no such rate.
    """
    name, _, number = text.partition("=")
    if not re.fullmatch(r"[A-Za-z]{3}", name.strip()):
        raise InputError(f"{text!r} is no rate; write eur=1.08, the dollars that one costs")
    rate = _positive(number.lower().removesuffix(DOLLARS), {"": 1.0}, "a rate", "eur=1.08")
    return Money(rate, name.strip().lower())


def parse_electricity(text: str) -> Money:
    """Read a price of electricity such as ``0.30usd/kWh``, per kWh.

    Raises:
        InputError: The text is no such price, or is 0.
    """
    amount = re.sub(r"/\s*kwh\s*$", "", text, flags=re.IGNORECASE)
    try:
        return parse_money(amount)
    except InputError as error:
        raise InputError(f"{text!r} is no price of electricity; write 0.30usd/kWh") from error


def _positive(text: str, units: dict[str, float], what: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise InputError(f"{text!r} is not {what}; write it like {example}")
    value = float(match[1]) * units[match[2].lower()]
    if not 0 < value < math.inf:
        raise InputError(f"{text!r} is {value:g}, which leaves nothing; write it like {example}")
    return value


def format_bytes(num_bytes: float) -> str:
    """Print bytes with the binary unit that leaves one to four digits before the point."""
    sign, size = ("-" if num_bytes < 0 else ""), abs(num_bytes)
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{sign}{size / unit:.2f} {name}"
    return f"{sign}{size:.0f} B"


def format_seconds(time_s: float) -> str:
    """Print a time as ms, s, min or h, whichever reads best."""
    if time_s < 0.9995:  # noqa: PLR2004 - what rounds to 1,000 ms is a second
        return f"{time_s * 1e3:.3g} ms"
    if time_s < 120:  # noqa: PLR2004 - two minutes still read well in seconds
        return f"{time_s:.2f} s"
    if time_s < 7200:  # noqa: PLR2004 - two hours still read well in minutes
        return f"{time_s / 60:.1f} min"
    return f"{time_s / 3600:.1f} h"


def format_range(low_s: float, high_s: float) -> str:
    """Print a range of times in the unit of its higher end: ``1.0 to 2.4 min``."""
    high, unit = format_seconds(high_s).rsplit(" ", 1)
    low = low_s * float(high) / high_s if high_s else 0.0
    digits = len(high.partition(".")[2])
    return f"{low:.{digits}f} to {high} {unit}"


def format_days(days: float) -> str:
    """Print days; below two, hours; below two of those, minutes; then seconds."""
    if days >= 2:  # noqa: PLR2004 - two days still read well in hours
        return f"{days:.3g} days" if days < 1000 else f"{days:,.0f} days"  # noqa: PLR2004
    hours = days * 24
    if hours >= 2:  # noqa: PLR2004
        return f"{hours:.3g} h"
    return f"{hours * 60:.3g} min" if hours * 60 >= 2 else f"{hours * 3600:.3g} s"  # noqa: PLR2004


_shown: ContextVar[Money | None] = ContextVar("shown", default=None)


@contextmanager
def shown_in(rate: Money | None) -> Iterator[None]:
    """Print amounts in another currency than dollars, as long as this lasts.

    Args:
        rate: What one of it costs in dollars; None: in dollars.
    """
    token = _shown.set(rate)
    try:
        yield
    finally:
        _shown.reset(token)


def format_money(usd: float) -> str:
    """Print dollars, or what they are in the currency that was asked for: cents below a hundred."""
    rate = _shown.get()
    amount, name = (usd, DOLLARS) if rate is None else (usd / rate.amount, rate.currency)
    digits = f"{amount:,.2f}" if amount < 100 else f"{amount:,.0f}"  # noqa: PLR2004
    return f"{digits} {name.upper()}"


def _three_digits(value: float) -> str:
    """Print three digits without an exponent: 999.7 is 1000, where ``.3g`` says 1e+03."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"  # noqa: PLR2004 - rounds up


def format_count(count: float) -> str:
    """Print a count with K, M, B or T (powers of 1000) and three digits."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(count) >= unit:
            return f"{_three_digits(count / unit)}{name}"
    return f"{count:.0f}"


def format_rate(rate_per_s: float, unit: str) -> str:
    """Print a rate such as ``1.69 TFLOP/s`` or ``33.5 GB/s`` (powers of 1000)."""
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate_per_s >= scale:
            return f"{_three_digits(rate_per_s / scale)} {prefix}{unit}/s"
    return f"{_three_digits(rate_per_s)} {unit}/s"


def format_signed_percent(value: float, reference: float) -> str:
    """Print the signed relative error of ``value`` against ``reference`` in percent.

    What rounds to nothing is +0.00, whichever side it came from.
    """
    if reference == 0:
        return "0.00 %" if value == 0 else "-"
    percent = round(100 * (value - reference) / reference, 2)
    return f"{percent + 0.0:+.2f} %"
