"""Settings of a strategy that were named and do not go together: the fewest to let go of.

Each refusal names what would run beside one other setting; where several are named these lead in
circles. So every way to let go of one is tried, then of two, and the first that runs is answered.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import combinations, islice, product
from typing import TYPE_CHECKING, NamedTuple

from brimful.cli.flags import STRATEGY
from brimful.errors import BrimfulError, InputError, OutOfTimeError, UnsupportedError

if TYPE_CHECKING:
    from brimful.search.solve import Solution

Check = Callable[[Mapping[str, object]], BrimfulError | None]
"""What is said against the flags with some changed; None: they run."""
_MOST_LET_GO, _MOST_TRIED = 3, 1500
_SEARCHES_S = 15.0
"""Seconds that a search may take below an answer."""


class Together(NamedTuple):
    """What runs instead of settings that do not go together.

    Attributes:
        changes: Flags, and what they say then; None: nothing.
        reasons: Why each of them could not stay as it was beside what stays.
    """

    changes: dict[str, object]
    reasons: tuple[str, ...]

    @property
    def refusal(self) -> UnsupportedError:
        """Say all of that at once."""
        words = "; ".join(dict.fromkeys(self.reasons))
        return UnsupportedError(f"these settings do not go together: {words}", nearest=self.changes)


def checked(args: argparse.Namespace) -> Check:
    """Return what checks the flags of one strategy."""
    from brimful.cli.resolved import asked

    def check(changes: Mapping[str, object]) -> BrimfulError | None:
        try:
            asked(argparse.Namespace(**{**vars(args), **changes}))
        except (InputError, UnsupportedError) as error:
            return error
        return None

    return check


def go_together(typed: Mapping[str, object], error: BrimfulError, check: Check) -> Together | None:
    """Return the nearest that runs where what a refusal names instead is refused in its turn.

    ``typed``: the flags. ``error``: the refusal. Returns None: what it names runs, or it is of
    something else than the settings of a strategy, or nothing near runs.
    """
    named = [name for name in STRATEGY if typed.get(name) is not None]
    refused = list[BrimfulError]()
    tried: dict[str, object] = {}
    last: BrimfulError | None = error
    while last is not None and last.nearest and len(refused) < _MOST_LET_GO:
        if not last.nearest.keys() <= {*STRATEGY}:
            return None
        refused.append(last)
        tried |= last.nearest
        last = check(tried)
    if last is None or len(refused) < 2 or len(named) < 2:  # noqa: PLR2004 - of a circle
        return None
    near = _options(typed, named, refused)
    for changes in islice(_ways(near), _MOST_TRIED):
        if check(changes) is None:
            return Together(changes, tuple(_reasons(changes, check)))
    return None


def _options(
    typed: Mapping[str, object], named: Sequence[str], refused: Sequence[BrimfulError]
) -> dict[str, list[object]]:
    """List what each setting may say instead, the nearest first, those that were refused first."""
    suspects = [name for each in refused for name in each.nearest if name in named]
    near: dict[str, list[object]] = {}
    for name in dict.fromkeys([*suspects, *named]):
        value = typed[name]
        parts = value.split(",") if isinstance(value, str) and "," in value else []
        fewer = [",".join(part for part in parts if part != left) for left in reversed(parts)]
        said = [each.nearest[name] for each in refused if each.nearest.get(name) is not None]
        near[name] = [each for each in (*fewer, *said, None) if each != value]
    return near


def _ways(near: Mapping[str, Sequence[object]]) -> Iterator[dict[str, object]]:
    """Yield changes of one setting, then of two and three."""
    for num in range(1, _MOST_LET_GO + 1):
        for names in combinations(near, num):
            for values in product(*(near[name] for name in names)):
                yield dict(zip(names, values, strict=True))


def _reasons(changes: Mapping[str, object], check: Check) -> Iterator[str]:
    """Yield why each setting cannot be as it was beside all that stays."""
    for name in changes:
        others = {other: value for other, value in changes.items() if other != name}
        refused = check(others)
        if refused is not None:
            yield str(refused).partition(";")[0]


def tell_planned(args: argparse.Namespace) -> None:
    """Print what a search finds for the same job on the same cards.

    ``args``: the flags of one strategy, of which the job's count.
    """
    from brimful.cli import searching
    from brimful.cli.output import show_facts
    from brimful.search.budget import Budget
    from brimful.show.summary import Fact

    parser = argparse.ArgumentParser()
    import_module("brimful.cli.plan").add_arguments(parser)  # which may answer here itself
    plain = vars(parser.parse_args([args.model]))
    job = {name: x for name, x in vars(args).items() if name in plain and name not in STRATEGY}
    planned = argparse.Namespace(**{**plain, **job})
    words = "brimful plan with the job's flags alone searches what fits"
    try:
        if not searching.is_untraced(planned):
            words = _found_words(searching.search(planned, Budget(_SEARCHES_S)))
    except (InputError, OutOfTimeError, UnsupportedError):
        pass
    show_facts(Fact("plan", words))


def _found_words(found: "Solution") -> str:
    """Say what a search found: how full a card is, with which settings, how fast."""
    from brimful.show.predicted import meter_of, verdict_of
    from brimful.show.run import rate_words
    from brimful.show.settings import settings_words

    plan, made = found.plan, found.plan.estimate
    settings = ", ".join(settings_words(plan.job, plan.strategy))
    if made is None:
        return f"the best that it finds has {settings}"
    rate = f", {rate_words(plan.job, made.predicted_step_s)}" if made.predicted_step_s else ""
    verdict = verdict_of(made)
    return f"finds {verdict} for the job alone: {meter_of(made).words}, with {settings}{rate}"
