"""By when a run is to be done, and for how much: flags, and whether a plan keeps to them."""

import argparse
from typing import TYPE_CHECKING, NamedTuple

from brimful.errors import InputError
from brimful.show.summary import Fact
from brimful.units import (
    DOLLARS,
    Money,
    format_count,
    format_days,
    format_money,
    parse_duration,
    parse_money,
    parse_rate,
)

if TYPE_CHECKING:
    from brimful.cost.money import Cost

_HOUR_S, _DAY_S = 3600.0, 86400.0
_MONEY = ("money_budget", "electricity", "buy")
"""Amounts among the flags, which may be in a currency of their own."""
_LIMITS = ("deadline", "money_budget", "currency")


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
    """Turn amounts into dollars, in which prices are."""
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


def refuse_limits(args: argparse.Namespace, why: str) -> None:
    """Refuse limits beside what has no run that could keep to them.

    ``why``: nothing of a run is known there, in words.
    """
    given = [name for name in _LIMITS if getattr(args, name, None) is not None]
    if given:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        verb, them = ("is", "it") if len(given) == 1 else ("are", "them")
        raise InputError(
            f"{flags} {verb} of a training run's time and cost, and {why}; leave {them} out",
            nearest=dict.fromkeys(given),
        )


def unchecked_facts(args: argparse.Namespace, why: str) -> tuple[Fact, ...]:
    """Say that no limit is checked; nothing where none was given."""
    named = {"deadline": "the deadline", "money_budget": "the budget"}
    given = [words for name, words in named.items() if getattr(args, name, None) is not None]
    verb = "is" if len(given) == 1 else "are"
    return (Fact("limits", f"{' and '.join(given)} {verb} not checked: {why}"),) if given else ()


class Kept(NamedTuple):
    """Whether a run keeps to what was asked of it.

    Attributes:
        deadline_s: By when it is to be done; None: nobody said.
        in_time: Whether it is; None: not checked.
        budget_usd: For how much; None: nobody said.
        within_budget: Whether it is; None: not checked.
    """

    deadline_s: float | None
    in_time: bool | None
    budget_usd: float | None
    within_budget: bool | None


def kept_of(args: argparse.Namespace, cost: "Cost", *, is_length_given: bool) -> Kept | None:
    """Check a run by what was asked of it; None: nothing was.

    ``args``: the flags; other verbs' may have no limits. ``is_length_given``: whether somebody said
    how long the run is.
    """
    deadline_s, budget_usd = (getattr(args, name, None) for name in ("deadline", "money_budget"))
    if deadline_s is None and budget_usd is None:
        return None
    hours, usd = (cost.hours, cost.usd) if is_length_given else (None, None)
    in_time = None if hours is None or deadline_s is None else hours * _HOUR_S <= deadline_s
    within = None if usd is None or budget_usd is None else usd <= budget_usd
    return Kept(deadline_s, in_time, budget_usd, within)


def limit_facts(
    args: argparse.Namespace,
    cost: "Cost",
    *,
    is_length_given: bool,
    slow: float,
    is_shopped: bool = True,
) -> tuple[Fact, ...]:
    """Say whether a run keeps to what was asked of it; nothing where nothing was.

    ``args``: the flags; other verbs' may have no limits. ``is_length_given``: whether somebody said
    how long the run is. ``slow``: the slow end of a time's range, in parts of it. ``is_shopped``:
    whether ``brimful shop`` takes the same job.
    """
    kept = kept_of(args, cost, is_length_given=is_length_given)
    if kept is None:
        return ()
    if not is_length_given:
        return (Fact("limits", "are of a run, and nobody says how long it is: add --tokens"),)
    words = [_deadline_words(kept, cost, slow), _budget_words(kept, cost)]
    missed = "--money-budget" if kept.within_budget is False else ""
    missed = "--deadline" if kept.in_time is False else missed
    missed = missed if is_shopped else ""
    instead = f": brimful shop with the same job and {missed} finds what does" if missed else ""
    told, done = "; ".join(filter(None, words)), _done_words(kept, cost)
    see = "; ".join(filter(None, ("see brimful shop" if missed else "", done)))
    by_then = f"; {done}" if done else ""
    return (Fact("limits", f"{told}{instead}{by_then}", f"{told} ({see})" if see else told),)


def _done_words(kept: Kept, cost: "Cost") -> str:
    """Say how many steps are done by a deadline that a run misses; empty: it misses none."""
    if kept.in_time is not False or not kept.deadline_s or not cost.hours:
        return ""
    done = int(cost.num_steps * kept.deadline_s / (cost.hours * _HOUR_S))
    tokens = format_count(cost.num_tokens * done // cost.num_steps)
    return f"{done:,} of its {cost.num_steps:,} steps ({tokens} tokens) are done by then"


def _deadline_words(kept: Kept, cost: "Cost", slow: float) -> str:
    """Say whether a run is in time; empty: nobody asked."""
    if kept.deadline_s is None:
        return ""
    if cost.hours is None:
        return "the deadline is not checked: the speed is unknown"
    most = format_days(kept.deadline_s / _DAY_S)
    if kept.in_time:
        slow_days = cost.hours * _HOUR_S * slow / _DAY_S
        is_sure = slow_days * _DAY_S <= kept.deadline_s
        risk = (
            ""
            if is_sure
            else f", but at the slow end of its range it takes {format_days(slow_days)}"
        )
        return f"in time for the deadline of {most}{risk}"
    over_s = cost.hours * _HOUR_S - kept.deadline_s
    return f"{format_days(over_s / _DAY_S)} too late for the deadline of {most}"


def _budget_words(kept: Kept, cost: "Cost") -> str:
    """Say whether a run costs no more than there is; empty: nobody asked."""
    if kept.budget_usd is None:
        return ""
    if cost.usd_per_gpu_hour is None:
        return "the budget is not checked: no price is known; --prices gives one"
    if cost.usd is None:
        return "the budget is not checked: the speed is unknown"
    most = format_money(kept.budget_usd)
    over = format_money(cost.usd - kept.budget_usd)
    return f"within {most}" if kept.within_budget else f"{over} more than {most}"
