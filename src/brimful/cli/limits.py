"""By when a run is to be done, and for how much: flags, and whether a plan keeps to them."""

import argparse
from typing import TYPE_CHECKING

from brimful.errors import InputError
from brimful.show.summary import Fact
from brimful.units import (
    DOLLARS,
    Money,
    format_days,
    format_money,
    parse_duration,
    parse_money,
    parse_rate,
    shown_in,
)

if TYPE_CHECKING:
    from brimful.cost.money import Cost

_HOUR_S, _DAY_S = 3600.0, 86400.0
_MONEY = ("money_budget", "electricity", "buy")
"""Amounts among the flags, which may be in a currency of their own."""


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add ``--deadline``, ``--money-budget`` and ``--currency``."""
    add = parser.add_argument
    add("--deadline", metavar="TIME", type=parse_duration, help="by when, e.g. 48h or 3d")
    add("--money-budget", metavar="USD", type=parse_money, help="for how much, e.g. 500usd")
    add(
        "--currency",
        metavar="RATE",
        type=parse_rate,
        help="what one of another currency costs in dollars, e.g. eur=1.08; amounts may be in it",
    )


def in_dollars(args: argparse.Namespace) -> None:
    """Turn amounts into dollars, in which prices are.

    Raises:
        InputError: One is in a currency whose rate nobody gave.
    """
    for name in _MONEY:
        given = getattr(args, name, None)
        if not isinstance(given, Money):
            continue
        rate = 1.0 if given.currency == DOLLARS else None
        if args.currency is not None and args.currency.currency == given.currency:
            rate = args.currency.amount
        if rate is None:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{flag} is in {given.currency.upper()} and prices are in USD; say what one costs, "
                f"--currency {given.currency}=RATE, or give {flag} in usd",
                nearest={name: None},
            )
        setattr(args, name, given.amount * rate)


def limit_facts(
    args: argparse.Namespace, cost: "Cost", *, is_length_given: bool
) -> tuple[Fact, ...]:
    """Say whether a run keeps to what was asked of it; nothing where nothing was.

    Args:
        args: The flags; other verbs' may have no limits.
        cost: Of the run.
        is_length_given: Whether somebody said how long the run is.
    """
    words, missed = list[str](), ""
    deadline_s = getattr(args, "deadline", None)
    budget_usd = getattr(args, "money_budget", None)
    if not is_length_given and (deadline_s, budget_usd) != (None, None):
        return (Fact("limits", "are of a run, and nobody says how long it is: add --tokens"),)
    if deadline_s is not None and cost.hours is not None:
        over_s, most = cost.hours * _HOUR_S - deadline_s, format_days(deadline_s / _DAY_S)
        late = f"{format_days(over_s / _DAY_S)} too late for the deadline of {most}"
        words.append(late if over_s > 0 else f"in time for the deadline of {most}")
        missed = "--deadline" if over_s > 0 else missed
    if budget_usd is not None and cost.usd is not None:
        with shown_in(args.currency):
            over, most = format_money(cost.usd - budget_usd), format_money(budget_usd)
        is_over = cost.usd > budget_usd
        words.append(f"{over} more than {most}" if is_over else f"within {most}")
        missed = missed or ("--money-budget" if is_over else "")
    if not words:
        return ()
    instead = f": brimful shop with the same job and {missed} finds what does" if missed else ""
    return (Fact("limits", "; ".join(words) + instead),)
