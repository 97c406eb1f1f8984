"""The answer to ``shop``: which GPUs to take, what else there is, and the fewest that do."""

import math
from collections.abc import Iterator, Sequence

from brimful.cost.money import HOUR_S
from brimful.hardware.datasheets import datasheets
from brimful.hardware.names import split_counts
from brimful.search.shop.choose import SOON_DAYS, Choice, is_soon, point_of, rank
from brimful.search.shop.own import Ownership, cheapest_of
from brimful.search.shop.values import DAY_S, Limits, Market, Option
from brimful.show.predicted import job_words
from brimful.show.settings import settings_words
from brimful.show.shop_owned import (
    against_facts,
    both_words,
    compared_of,
    decided_words,
    leading,
    yours_fact,
)
from brimful.show.summary import Fact, Summary
from brimful.units import format_count, format_days, format_money
from brimful.values.job import Job

NUM_OTHERS = 2
"""Other choices that are named, from the cheapest to the fastest."""
NUM_NAMED = 6
"""Kinds that a user names: of so many each is told."""
NUM_KINDS = 3
"""Of which the fewest hold a job, that are named."""
_NEWER = "bf16"
"""A type that older cards have no units for, which have fp16."""
LITTLE_MORE = 1.03
"""Of the cheapest's dollars, for which fewer GPUs are told."""


def shop_summary(
    job: Job,
    found: Market,
    limits: Limits,
    choice: Choice | None,
    owned: Sequence[Ownership],
) -> Summary:
    """Say what to take.

    ``choice``: what to take; None where nothing has a price and a time. ``owned``: what owning
    means, of each of ``found.owned``.
    """
    tokens = format_count(job.num_steps * job.tokens_per_step)
    asked = f"{job_words(job)}, {tokens} tokens: "
    if choice is None:
        nothing = "no number of any GPU that has a price fits this job in a known time"
        subject = asked + asked_words(limits, None)
        return Summary("NO", subject, None, (Fact("take", nothing),))
    best = choice.best
    cheapest = cheapest_of(found.owned, owned, limits, best)
    compared = compared_of(found.owned)
    leads = leading(found.owned, cheapest)
    subject = asked + decided_words(asked_words(limits, best), compared, cheapest, best)
    rented = (
        Fact("to rent" if leads or compared else "take" if choice.meets else "nearest",
             f"{_told(best)}{_range(best)}", _shortly(best) if leads or compared else ""),
        *_machines(best),
        *_fastest(found, limits, best),
        *_why(limits, best),
        *_over(choice),
        *_safer(found, limits, choice),
        *_one_node(found, best),
        *_enough(job, limits, choice),
    )  # fmt: skip
    pairs = list(zip(found.owned, owned, strict=True))
    pairs.sort(key=lambda pair: compared.index(pair[0]) if compared else 0)
    yours = [yours_fact(each, best, one) for each, one in pairs]
    if len(yours) == 1 and not found.unfit:  # whose length leaves no other out
        yours = [Fact(each.label, each.text) for each in yours]
    told = {best.gpus, *(each.gpus for each in _fastest_of(found, limits, best))}
    settings = Fact("settings", ", ".join(settings_words(job, (leads or best).strategy)))
    yours += against_facts(job, compared)
    yours += [Fact("yours", f"{each.gpus}: {each.why}") for each in found.unfit]
    yours += _recipes(job, (best, *found.by_kind, *found.owned))
    kinds = _by_kind(job, found, limits)  # which somebody named: above what may be left out
    rented = (*rented, *kinds) if leads else (*rented[:1], *kinds, *rented[1:])
    facts = (
        *((*yours, *rented) if leads else (*rented, *yours)),
        *_second(found),
        *_left_out(found),
        *_fewest(found, limits),
        *_others("or", [each for each in found.frontier if each.gpus not in told]),
        *_others("at best", [each for each in found.likely if each.gpus not in told][-1:]),
        *_tie(best, [*found.frontier, *found.likely]),
        settings,  # which a plan says, and what costs what does not
    )
    return Summary(None if choice.meets or leads else "NO", subject, None, facts)


def _by_kind(job: Job, found: Market, limits: Limits) -> tuple[Fact, ...]:
    """Say what each kind that was named does best of what was asked, or why it does nothing."""
    without = list(_without_best(job, found)) if found.by_kind else []
    if len(found.by_kind) + len(without) < 2:  # noqa: PLR2004 - one is what is taken
        return ()
    is_open = limits.are_none and not found.machines
    fewest = {each.kind: each for each in found.fewest} if is_open else {}
    near = {each.kind: each for each in found.fewer}
    words, short = [], []
    for best in sorted(found.by_kind, key=lambda each: rank(point_of(each), limits)):
        misses = "" if _meets(best, limits) else ", which misses what was asked"
        least = fewest.get(best.kind, best)
        fewer = (
            f" (fewest {least.num_gpus}: {both_words(least)})" if least.gpus != best.gpus else ""
        )
        if best.kind in near and near[best.kind].gpus != least.gpus:
            fewer = f" (or {near[best.kind].gpus}: {both_words(near[best.kind])}){fewer}"
        words.append(f"{best.gpus}: {both_words(best)}{misses}{fewer}")
        few = near.get(best.kind, least)
        is_less = few.gpus != best.gpus
        fewest_words = f" ({few.num_gpus}: {format_days(few.predicted_days)})" if is_less else ""
        short.append(
            f"{best.gpus}: {both_words(best)}{' (misses)' if misses else ''}{fewest_words}"
        )
    words += without
    short += without
    told = Fact("by kind", "; ".join(words), "; ".join(short))
    return (told, *(_turns(found.by_kind) if found.machines else ()))


def _turns(compared: Sequence[Option]) -> tuple[Fact, ...]:
    """Say how much faster the faster of two is, and at which price both cost the same.

    rent x GPUs x days is alike at rent = cost of the other / (GPUs x hours).
    """
    if len(compared) != 2 or any(each.predicted_usd is None for each in compared):  # noqa: PLR2004
        return ()
    fast, slow = sorted(compared, key=lambda each: each.predicted_days)
    hours = fast.num_gpus * fast.predicted_days * DAY_S / HOUR_S
    alike = (slow.predicted_usd or 0.0) / hours
    is_sure = fast.predicted_days_band.high < slow.predicted_days_band.low
    words = (
        f"{fast.gpus} is {slow.predicted_days / fast.predicted_days:.2g} x as fast"
        f"{'' if is_sure else ', within the range of both'}; both cost the same where an hour of "
        f"its GPUs is {format_money(alike)} ({format_money(fast.usd_per_gpu_hour or 0.0)} here)"
    )
    return (Fact("compared", words),)


def _without_best(job: Job, found: Market) -> Iterator[str]:
    """Yield why kinds that have a price and were named do nothing of what was asked."""
    best = {each.kind for each in found.by_kind}
    dropped = {split_counts(each.gpus).gpu: each.why for each in found.dropped}
    done = {each.gpus for each in found.by_kind}
    for one in found.dropped:
        if one.gpus in found.machines and one.gpus not in done:
            yield f"{one.gpus}: {one.why}"
    named = {split_counts(each).gpu for each in found.machines if each not in done}
    best |= named & {split_counts(each.gpus).gpu for each in found.dropped}
    for each in found.alone:
        if each.kind in best or each.usd_per_gpu_hour is None:
            continue
        half, _, autocast = job.precision.partition("-")
        rates = datasheets()[each.kind].matrix_flops_per_s
        if each.why_not and half == _NEWER and not rates.bf16 and rates.fp16:
            other = f"fp16{f'-{autocast}' if autocast else ''}"
            yield f"{each.kind}: has no {half}; --precision {other} asks what it takes"
        elif why := each.why_not or dropped.get(each.kind, ""):
            yield f"{each.kind}: {why}"


def _recipes(job: Job, told: Sequence[Option]) -> tuple[Fact, ...]:
    """Say which of what is told runs another recipe than what is compared with it."""
    kinds: dict[str, dict[str, None]] = {}
    for each in told:
        if each.precision != job.precision:
            kinds.setdefault(each.precision, {})[each.kind] = None
    words = [f"{recipe} on {' and '.join(names)}" for recipe, names in kinds.items()]
    why = f", without units for {job.precision}"
    return (Fact("precision", "; ".join(words) + why),) if words else ()


def _left_out(found: Market) -> tuple[Fact, ...]:
    """Say which of a few kinds that somebody named cannot be compared, and why."""
    if len(found.alone) > NUM_NAMED or found.by_kind:  # where it is said of each kind
        return ()
    return tuple(Fact("left out", each.why_not) for each in found.alone if each.why_not)


def _meets(option: Option, limits: Limits) -> bool:
    in_time = limits.deadline_s is None or option.predicted_days * DAY_S <= limits.deadline_s
    usd = option.predicted_usd
    return in_time and (limits.budget_usd is None or (usd or 0.0) <= limits.budget_usd)


def asked_words(limits: Limits, best: Option | None) -> str:
    """Say what was asked, and of what meets it which is taken.

    ``best``: what is taken; None: nothing.
    """
    in_time = limits.deadline_s and f"done in {format_days(limits.deadline_s / DAY_S)}"
    for_less = limits.budget_usd is not None and f"for at most {format_money(limits.budget_usd)}"
    if in_time:
        return f"the cheapest {in_time}{f' and {for_less}' if for_less else ''}"
    if for_less:
        return for_less if best is not None and is_soon(best, limits) else f"the fastest {for_less}"
    return "the cheapest"


def _why(limits: Limits, best: Option) -> tuple[Fact, ...]:
    """Say by what one of several that are within a budget was taken, where nobody gave a time."""
    if limits.budget_usd is None or not is_soon(best, limits):
        return ()
    words = f"the cheapest of what takes {format_days(SOON_DAYS)} at most; --deadline says another"
    return (Fact("within", words),)


def _fastest(found: Market, limits: Limits, best: Option) -> tuple[Fact, ...]:
    """Say how fast a run is at most for what may be spent."""
    return tuple(
        Fact("fastest", f"{each.gpus}: {both_words(each)}{', at best' * (each in found.likely)}")
        for each in _fastest_of(found, limits, best)
    )


def _fastest_of(found: Market, limits: Limits, best: Option) -> list[Option]:
    """Return the fastest within a budget, where that is not what is taken; else nothing."""
    budget = limits.budget_usd
    if budget is None:
        return []
    faster = [
        each
        for each in (*found.frontier, *found.likely)
        if each.predicted_days < best.predicted_days
        and each.predicted_usd is not None
        and each.predicted_usd <= budget
    ]
    return sorted(faster, key=lambda each: each.predicted_days)[:1]


def _one_node(found: Market, best: Option) -> tuple[Fact, ...]:
    """Name the best machine where what is taken is several, with a network between them."""
    if found.one_node is None or found.one_node == best:
        return ()
    return (Fact("one node", _told(found.one_node)),)


def _second(found: Market) -> tuple[Fact, ...]:
    """Name the best of another kind, for where what is taken is not to be had."""
    if found.second is None:
        return ()
    return (Fact("else", f"{_told(found.second)}, of another kind", found_words(found.second)),)


def _machines(option: Option) -> tuple[Fact, ...]:
    """Say what few expect of machines: that each has one GPU, or another processor."""
    nodes, each, _ = split_counts(option.gpus)
    words, processor = [], datasheets()[option.kind].processor
    if nodes > 1 and each == 1:
        words.append(f"{nodes} of one GPU each, with nothing but a network between them")
    if processor != "x86":
        words.append(f"with an {processor} processor, for which packages and images are others")
    return (Fact("machines", "; ".join(words)),) if words else ()


def unpriced_facts(found: Market, limits: Limits, unpriced: Sequence[str]) -> tuple[Fact, ...]:
    """Say of kinds that were named and have no price that it is missing, and what they would do."""
    most_days = math.inf if limits.deadline_s is None else limits.deadline_s / DAY_S
    facts = []
    for kind in unpriced:
        known = [each for each in (*found.options, *found.likely) if each.kind == kind]
        in_time = [each for each in known if each.predicted_days <= most_days]
        does = min(in_time, key=lambda each: each.num_gpus, default=None)
        time = f"; {does.gpus} takes {format_days(does.predicted_days)}" if does else ""
        if not does:
            why = [each.why for each in found.dropped if split_counts(each.gpus).gpu == kind]
            time += f"; {why[-1]}" if why else ""
        facts.append(Fact("no price", f"{kind}: give one by --prices{time}"))
    return tuple(facts)


def _told(option: Option) -> str:
    rate = option.usd_per_gpu_hour
    paid = "" if rate is None else f" at {format_money(rate)} a GPU-hour"
    return (
        f"{option.gpus}: {both_words(option)}{paid}, {format_count(option.tokens_per_s)} tokens/s"
    )


def found_words(option: Option) -> str:
    """Say a choice in a line, as soon as it is certain."""
    return f"{option.gpus}: {both_words(option)}"


def _range(option: Option) -> str:
    """Say how far off a predicted time and cost may be."""
    days, usd = option.predicted_days_band, option.predicted_usd_band
    cost = "" if usd is None else f", {format_money(usd.low)} to {format_money(usd.high)}"
    return f" (range {format_days(days.low)} to {format_days(days.high)}{cost})"


def _shortly(option: Option) -> str:
    """Say a choice in a line, beside others: how far off it may be is said by its dollars."""
    usd = option.predicted_usd_band
    return found_words(option) + (
        "" if usd is None else f" (range {format_money(usd.low)} to {format_money(usd.high)})"
    )


def _over(choice: Choice) -> tuple[Fact, ...]:
    """Say by how much what comes nearest misses what was asked."""
    over = [
        f"{format_days(choice.over_days)} over the deadline" if choice.over_days else "",
        f"{format_money(choice.over_usd)} over the budget" if choice.over_usd else "",
    ]
    words = " and ".join(filter(None, over))
    if words:
        return (Fact("misses", words),)
    if not choice.band_meets:
        return (Fact("risk", "the slow end of the range misses what was asked"),)
    return ()


def _safer(found: Market, limits: Limits, choice: Choice) -> tuple[Fact, ...]:
    """Name the cheapest that does what was asked at the slow end of its range too."""
    if not choice.meets or choice.band_meets:
        return ()
    every = [*found.frontier, *found.likely, *([found.smallest] if found.smallest else [])]
    sure = [each for each in every if _surely_meets(each, limits)]
    if not sure:
        return ()
    best = min(sure, key=lambda each: rank(point_of(each), limits))
    most_usd = LITTLE_MORE * point_of(best).usd
    fewest = min((s for s in sure if point_of(s).usd <= most_usd), key=lambda each: each.num_gpus)
    return (Fact("safer", f"{found_words(fewest)}{_range(fewest)}", found_words(fewest)),)


def _surely_meets(option: Option, limits: Limits) -> bool:
    days, usd = option.predicted_days_band, option.predicted_usd_band
    in_time = limits.deadline_s is None or days.high * DAY_S <= limits.deadline_s
    return in_time and (
        limits.budget_usd is None or (usd is not None and usd.high <= limits.budget_usd)
    )


def _enough(job: Job, limits: Limits, choice: Choice) -> tuple[Fact, ...]:
    """Say for how many tokens the money or the time is enough: both grow with their number."""
    best, words = choice.best, []
    tokens = job.num_steps * job.tokens_per_step
    if choice.over_usd and limits.budget_usd is not None and best.predicted_usd:
        num = format_count(tokens * limits.budget_usd / best.predicted_usd)
        words.append(f"{format_money(limits.budget_usd)} pay for {num} tokens there")
    if choice.over_days and limits.deadline_s is not None:
        num = format_count(tokens * limits.deadline_s / DAY_S / best.predicted_days)
        words.append(f"{format_days(limits.deadline_s / DAY_S)} are enough for {num} tokens")
    return (Fact("enough", ", and ".join(words)),) if words else ()


def _tie(best: Option, others: Sequence[Option]) -> tuple[Fact, ...]:
    """Say that another kind of GPU costs about as much: within the range of both predictions."""
    band = best.predicted_usd_band
    near = [
        each
        for each in others
        if each.kind != best.kind and each.predicted_usd is not None and band is not None
        if each.predicted_usd <= band.high
    ]
    if not near or not best.predicted_usd:
        return ()
    other = min(near, key=lambda each: each.predicted_usd or 0.0)
    more = (other.predicted_usd or 0.0) / best.predicted_usd - 1
    words = f"{other.gpus} costs {more:.0%} more, which is within the range of both: no difference"
    return (Fact("a tie", f"{words} is sure"),)


def _others(label: str, others: Sequence[Option]) -> tuple[Fact, ...]:
    """Name other choices that nothing beats in both time and money, spread from end to end."""
    step = max(1, -(-len(others) // NUM_OTHERS))
    chosen = others[step - 1 :: step][:NUM_OTHERS]
    return tuple(
        Fact("" if place else label, f"{each.gpus}: {both_words(each)}")
        for place, each in enumerate(chosen)
    )


def _fewest(found: Market, limits: Limits) -> tuple[Fact, ...]:
    """Name the fewest GPUs that do what was asked, or of which the fewest hold the job at all.

    Of a few kinds that somebody named each is told beside what it does best.
    """
    if limits.are_none and 1 < len(found.fewest) <= NUM_NAMED and len(found.by_kind) > 1:
        return ()  # told beside what each kind does best
    if found.smallest is not None:
        words = f"{found.smallest.gpus}: {both_words(found.smallest)}"
        if not _surely_meets(found.smallest, limits):
            words += f", which may miss what was asked{_range(found.smallest)}"
        return (Fact("fewest", words),)
    priced = [
        each for each in found.alone if each.usd_per_gpu_hour is not None and not each.why_not
    ]
    priced.sort(key=lambda each: each.usd_per_gpu_hour or 0.0)
    number = min((each.fewest for each in priced if each.fewest is not None), default=0)
    kinds = [each for each in priced if each.fewest == number]
    if not kinds:
        return ()
    names = [
        f"{each.kind} ({format_money(each.usd_per_gpu_hour or 0.0)}/h)"
        for each in kinds[:NUM_KINDS]
    ]
    more = [f"{len(kinds) - NUM_KINDS} more"] if len(kinds) > NUM_KINDS else []
    return (
        Fact("fewest", f"{number} of {', '.join([*names, *more])} hold it, in any time (each: -v)"),
    )
