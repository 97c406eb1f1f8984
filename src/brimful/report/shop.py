"""A market as text: what to take first, then the frontier, then why the others lost."""

from typing import TYPE_CHECKING, NamedTuple

from brimful.cost.money import DRAW_SHARE, PUE, Prices
from brimful.report.tables import add_row, bullets, pairs_table, plain_table
from brimful.report.words import model_words
from brimful.search.shop.advice import advice, outcome
from brimful.search.shop.choose import SOON_DAYS, Choice, is_soon
from brimful.search.shop.own import Ownership
from brimful.search.shop.values import DAY_S, Alone, Limits, Market, Option
from brimful.units import format_bytes, format_count, format_days, format_money
from brimful.values.job import Job
from brimful.values.plan import Band
from brimful.values.strategy import Strategy, num_checkpointed, recompute_of

if TYPE_CHECKING:
    from rich.console import RenderableType

UNKNOWN = "unknown"
_RIGHT = {"time", "USD", "kWh", "tokens/s", "spare", "USD/h", "at best"}


class Shopped(NamedTuple):
    """Everything that a page or a terminal shows.

    Attributes:
        job: What is trained.
        found: What can be had.
        limits: What was asked.
        choice: What to take; None where nothing has a price and a time.
        owned: What owning means: of the user's own GPUs, then of the choice's.
        prices: Of what was compared.
        unpriced: Kinds without a price.
    """

    job: Job
    found: Market
    limits: Limits
    choice: Choice | None
    owned: tuple[Ownership, ...]
    prices: Prices
    unpriced: tuple[str, ...]


def shop_tables(shopped: Shopped) -> "list[RenderableType]":
    """Lay out a market for the terminal: at most 100 columns."""
    found = shopped.found
    parts: list[RenderableType] = [
        bullets("Take", headline(shopped)),
        pairs_table(inputs(shopped), title="\nThe run"),
    ]
    if found.frontier:
        title = "\nFrontier (predicted): nothing is both faster and cheaper, cheapest first"
        parts.append(_options_table(title, found.frontier, shopped))
    if found.fewest:
        title = "\nThe fewest of each kind that hold it (predicted)"
        parts.append(_options_table(title, found.fewest, shopped))
    if found.owned:
        parts.append(_options_table("\nYour own (predicted)", found.owned, shopped))
    parts += [
        *(pairs_table(own_pairs(own), title=f"\nOwn {own.gpus}") for own in shopped.owned),
        bullets("\nWhat the numbers say", told(found)),
        _kinds_table(found),
        bullets("\nIt rests on", rests_on(shopped)),
    ]
    return parts


def told(found: Market) -> tuple[str, ...]:
    """Say what the numbers say, and of the user's own GPUs those that cannot run the job."""
    return (*(f"your {each.gpus}: {each.why}" for each in found.unfit), *advice(found))


def headline(shopped: Shopped) -> list[str]:
    """Say what to take and whether it is what was asked for; what is nearest where nothing is."""
    choice, limits = shopped.choice, shopped.limits
    if choice is None:
        return ["nothing: no number of any kind that has a price fits this job in a known time"]
    best = choice.best
    cost = format_money(best.predicted_usd or 0.0)
    what = f"{best.gpus}: {format_days(best.predicted_days)} and {cost}"
    if not choice.meets:
        over = [
            f"{format_days(choice.over_days)} over the deadline" if choice.over_days else "",
            f"{format_money(choice.over_usd)} over the budget" if choice.over_usd else "",
        ]
        return [
            f"nothing meets {_asked(limits)}; nearest is {what}, {' and '.join(filter(None, over))}"
        ]
    lines = [f"{what}, {_why(limits, best)}"]
    bands = f"{_days_band(best)}, {_usd_band(best.predicted_usd_band)}"
    if choice.band_meets:
        lines.append(f"with the band of the prediction: {bands}")
    else:
        lines.append(f"the band of the prediction reaches past what was asked: {bands}")
    return lines


def _asked(limits: Limits) -> str:
    parts = []
    if limits.deadline_s is not None:
        parts.append(f"the deadline of {format_days(limits.deadline_s / DAY_S)}")
    if limits.budget_usd is not None:
        parts.append(f"the budget of {format_money(limits.budget_usd)}")
    return " and ".join(parts)


def _why(limits: Limits, best: Option) -> str:
    if limits.deadline_s is None and limits.budget_usd is None:
        return "the cheapest of all"
    if is_soon(best, limits):
        return (
            f"the cheapest of what takes {format_days(SOON_DAYS)} at most, within {_asked(limits)}"
        )
    if limits.deadline_s is None:
        return f"the fastest within {_asked(limits)}"
    return f"the cheapest that meets {_asked(limits)}"


def _days_band(option: Option) -> str:
    band = option.predicted_days_band
    return f"{format_days(band.low)} to {format_days(band.high)}"


def _usd_band(band: Band | None) -> str:
    return UNKNOWN if band is None else f"{format_money(band.low)} to {format_money(band.high)}"


def inputs(shopped: Shopped) -> list[tuple[str, str]]:
    """List what was asked."""
    job, found = shopped.job, shopped.found
    tokens = job.num_steps * job.tokens_per_step
    return [
        ("job", model_words(job)),
        ("batch", f"{job.global_batch} sequences of {job.seq_len} tokens a step"),
        ("length", f"{format_count(tokens)} tokens in {job.num_steps} steps"),
        ("asked", _asked(shopped.limits) or "no deadline, no budget"),
        (
            "compared",
            f"{len(found.alone)} kinds, {found.num_cells} choices, {found.num_planned} searched",
        ),
    ]


def _options_table(title: str, options: tuple[Option, ...], shopped: Shopped) -> "RenderableType":
    names = ("GPUs", "plan", "time", "USD", "kWh", "tokens/s", "spare")
    table = plain_table(title)
    for name in names:
        table.add_column(name, justify="right" if name in _RIGHT else "left")
    best = shopped.choice.best if shopped.choice else None
    for option in options:
        add_row(table, cells(option, shopped.job), style="bold" if option == best else "")
    return table


def cells(option: Option, job: Job) -> tuple[str, ...]:
    """Print an option: GPUs, plan, days, dollars, kWh, tokens per second, spare memory."""
    usd, kwh = option.predicted_usd, option.predicted_energy_kwh
    return (
        option.gpus,
        plan_words(option.strategy, job),
        format_days(option.predicted_days),
        UNKNOWN if usd is None else f"{usd:,.2f}" if usd < 100 else f"{usd:,.0f}",  # noqa: PLR2004
        UNKNOWN if kwh is None else f"{kwh:,.0f}" if kwh >= 10 else f"{kwh:.2g}",  # noqa: PLR2004
        format_count(option.tokens_per_s),
        format_bytes(option.usable_bytes - option.predicted_peak_bytes),
    )


def plan_words(strategy: Strategy, job: Job) -> str:
    """Say a strategy in a few words: ``ZeRO-3/8, full 31``: 31 blocks recomputed in full."""
    words = []
    if strategy.zero:
        words.append(f"ZeRO-{strategy.zero}/{strategy.dp_shard}")
    elif strategy.dp_replicate > 1:
        words.append("DDP")
    if strategy.tp > 1:
        words.append(f"TP {strategy.tp}")
    num_layers = job.model.num_layers
    count = num_checkpointed(strategy, num_layers=num_layers)
    if count:
        how = recompute_of(strategy)
        words.append(f"{how} {'all' if count == num_layers else count}")
    return ", ".join(words) or "plain"


def own_pairs(own: Ownership) -> list[tuple[str, str]]:
    """List what owning means; what is unknown says what to give."""
    kwh, usd = own.predicted_energy_kwh, own.predicted_electricity_usd
    pairs = [
        ("run", format_days(own.predicted_days)),
        ("energy", UNKNOWN if kwh is None else f"{kwh:,.4g} kWh of the GPUs"),
        ("electricity", "unknown: give --electricity" if usd is None else format_money(usd)),
    ]
    buy = own.buy_usd
    pairs.append(
        (
            "price",
            "unknown: give --buy" if buy is None else f"{format_money(buy)} ({own.buy_source})",
        )
    )
    pairs.append(("break-even", _break_even(own)))
    if own.predicted_run_usd_amortised is not None:
        pairs.append(("run, amortised", format_money(own.predicted_run_usd_amortised)))
    return pairs


def _break_even(own: Ownership) -> str:
    rented, used = own.usd_per_gpu_hour_rented, own.usd_per_gpu_hour_used
    hours = own.break_even_hours
    if hours is not None:
        months = own.break_even_months
        long = f"{hours / 24:,.0f} days" if months is None else f"{months:,.0f} months of such use"
        return (
            f"after {hours:,.0f} h of use ({long}): an hour costs {rented:.2f} USD "
            f"rented, {used:.3f} owned"
        )
    if rented is None:
        return "unknown: what an hour of rent costs is; give it with --prices"
    if used is not None and rented <= used:
        return f"never: an hour takes {used:.3f} USD of electricity, and {rented:.2f} to rent"
    return "unknown, as long as the price and that of electricity are"


def _kinds_table(found: Market) -> "RenderableType":
    table = plain_table("\nKinds of GPU, one of each")
    for name in ("GPU", "USD/h", "alone", "at best", "outcome"):
        table.add_column(name, justify="right" if name in _RIGHT else "left")
    for kind in sorted(found.alone, key=_by_best):
        add_row(table, kind_cells(found, kind))
    return table


def _by_best(kind: Alone) -> float:
    return float("inf") if kind.at_best_usd is None else kind.at_best_usd


def kind_cells(found: Market, kind: Alone) -> tuple[str, ...]:
    """Print a kind: name, rent, whether one holds the job, the least it may cost, the outcome."""
    price, best, peak = kind.usd_per_gpu_hour, kind.at_best_usd, kind.predicted_peak_bytes
    alone = "fits" if kind.fits else UNKNOWN
    if peak is not None and not kind.fits:
        alone = f"{format_bytes(peak - kind.usable_bytes)} short"
    return (
        kind.kind,
        UNKNOWN if price is None else f"{price:.2f}",
        alone,
        UNKNOWN if best is None else format_money(best).removesuffix(" USD"),
        outcome(found, kind),
    )


def rests_on(shopped: Shopped) -> list[str]:
    """Say what the numbers rest on, and what they leave out."""
    lines = [
        "step times of datasheets, in the range of eight of ten runs: days and USD have the same",
        "left out: loading, evaluating, saving, queues, lost work, disks, traffic, hosts' power",
        f"energy: power limit x {DRAW_SHARE:.0%} drawn (assumed); rented, x {PUE} (unchecked)",
        "plan: ZeRO stage / shards; TP: devices that share matrices; full, selective: checkpoints",
        "nodes of 8 GPUs; at best: what the run costs if nothing is recomputed or sent",
    ]
    kinds = dict.fromkeys(option.kind for option in shopped.found.frontier)
    for kind in kinds:
        price = shopped.prices.gpus.get(kind)
        if price is not None:
            dated = f", {price.date}" if price.date else ""
            lines.append(f"{kind}: {price.usd_per_gpu_hour:.2f} USD/h ({price.source}{dated})")
    if shopped.unpriced:
        lines.append(f"price unknown, give it with --prices: {', '.join(shopped.unpriced)}")
    return lines
