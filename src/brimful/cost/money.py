"""What a finished run costs: hours, GPU-hours, energy, dollars.

Prices are those of one day and one seller, dated and cited in ``data/prices``; the user's own
replace them. Owns that folder and its schema.
"""

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from brimful.errors import FileFormatError, InputError
from brimful.hardware.cluster import Cluster
from brimful.hardware.datasheets import datasheets
from brimful.hardware.instances import cloud_of, listed_name
from brimful.hardware.names import find_gpu, split_counts
from brimful.text.escaping import Line
from brimful.units import DOLLARS, Money, parse_money
from brimful.values.job import Job
from brimful.values.plan import load_yaml

_FOLDER, _MACHINES = "data/prices", "data/machine_prices.json"
HOUR_S = 3600.0
_JOULES_PER_KWH = 3.6e6
DRAW_SHARE = 0.85
"""Of a GPU's power limit, drawn while it trains; assumed."""
PUE = 1.56
"""What a data centre takes over what its machines take: average of a survey of 2024 (Uptime
Institute, from memory, unchecked)."""


Market = Literal["secure", "community"]
"""Who rents GPUs out: data centres, or owners of single machines, cheaper and less certain."""
MARKETS: tuple[Market, ...] = get_args(Market)


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an hour of a GPU cost, when, where, and of whom.

    ``seller``: whose list price it is, where and of when. Neither that nor a market: the user's
    own.
    """

    usd_per_gpu_hour: float
    date: Line
    source: Line
    market: Market | None = None
    seller: Line = ""

    @property
    def whose(self) -> str:
        """Say whose price it is; empty: the user's own."""
        return self.market or self.seller


class Purchase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a GPU cost to buy, when, and where."""

    usd: float
    date: Line
    source: Line


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of prices.

    Attributes:
        date: Of its newest row.
        gpus: GPU to the price of an hour.
        bought: GPU to the price of one; few have one that can be cited.
    """

    date: Line
    gpus: dict[str, Price]
    bought: dict[str, Purchase] = {}


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run costs; None where something that it rests on is unknown.

    Attributes:
        num_tokens: That the run sees, padding included.
        num_steps: Optimizer steps.
        hours: Of the wall clock, without loading, evaluating and saving.
        gpu_hours: The same times the devices.
        energy_kwh: Of the GPUs, with what the data centre takes for them; hosts are not counted.
        usd_per_gpu_hour: The price.
        whose: Whose price that is: a market, or a cloud with place and day; empty: the user's
            own, or unknown.
        usd: For the run.
        assumptions: What the numbers rest on, a sentence each.
    """

    num_tokens: int
    num_steps: int
    hours: float | None
    gpu_hours: float | None
    energy_kwh: float | None
    usd_per_gpu_hour: float | None
    usd: float | None
    assumptions: tuple[Line, ...]
    whose: Line = ""


MOST_USD = 10**9
"""What no GPU costs; more is a typing error, and sums with it overflow."""


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table that ships: prices of an hour on each market."""

    date: Line
    gpus: dict[str, dict[Market, Price]]
    bought: dict[str, Purchase]


@cache
def _table() -> _Table:
    files = resources.files("brimful").joinpath(_FOLDER).iterdir()
    newest = max((f for f in files if f.name.endswith(".json")), key=lambda file: file.name)
    return msgspec.json.decode(newest.read_bytes(), type=_Table)


@cache
def shipped_prices(market: Market | None = None) -> Prices:
    """Read the newest prices that ship.

    ``market``: whose; None: of each GPU those of data centres, and where it has none the others.
    """
    table, asked = _table(), MARKETS if market is None else (market,)
    found = {
        name: next((each, prices[each]) for each in asked if each in prices)
        for name, prices in table.gpus.items()
        if any(each in prices for each in asked)
    }
    gpus = {name: msgspec.structs.replace(price, market=of) for name, (of, price) in found.items()}
    return Prices(date=table.date, gpus=gpus, bought=table.bought)


class _Listed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dollars an hour of whole machines on demand, of one list; no date: it states none."""

    region: Line
    date: Line
    source: Line
    usd_per_hour: dict[str, float]


@cache
def listed_prices() -> dict[str, Price]:
    """Read what clouds ask for their machines: name of a machine to the price of one GPU in it."""
    data = resources.files("brimful").joinpath(_MACHINES).read_bytes()
    found = {}
    for each in msgspec.json.decode(data, type=tuple[_Listed, ...]):
        for machine, usd in each.usd_per_hour.items():
            where = f"{cloud_of(machine)}'s list, {each.region}, {each.date or 'undated'}"
            found[machine] = Price(
                usd_per_gpu_hour=usd / split_counts(machine).per_node, date=each.date,
                source=each.source, seller=where,
            )  # fmt: skip
    return found


def on_machine(prices: Prices, machine: str) -> Prices:
    """Return prices with that of a cloud's machine, where it is known and the user said none.

    ``machine``: as the cloud calls it, without how many.
    """
    name, gpu = listed_name(machine), split_counts(machine).gpu
    price, own = listed_prices().get(name), prices.gpus.get(gpu)
    if price is None or (own is not None and not own.whose):
        return prices
    return msgspec.structs.replace(prices, gpus={**prices.gpus, gpu: price})


def read_prices(
    path: Path, market: Market | None = None, *, currency: Money | None = None
) -> Prices:
    """Read the user's prices over those that ship.

    ``path``: YAML or JSON: name of a GPU, as in ``brimful gpus``, to dollars per GPU-hour, or to
    ``rent`` in dollars per GPU-hour and ``buy`` in dollars, one of them or both; a text such as
    ``1.98cny`` is of another currency. ``market``: whose of those that ship; see
    ``shipped_prices``.
    """
    given = load_yaml(path)
    if not isinstance(given, dict) or not given:
        raise FileFormatError(f"{path} holds no prices; write lines such as h100-80gb: 2.50")
    rents, buys = {}, {}
    for typed, value in given.items():
        name = _known(path, str(typed))
        rent, buy = (
            _in_dollars(path, name, each, currency) for each in _rent_and_buy(path, name, value)
        )
        if rent is not None:
            _check_price(path, name, rent, "dollars per GPU-hour", "2.50")
            rents[name] = Price(usd_per_gpu_hour=float(rent), date="", source=str(path))
        if buy is not None:
            _check_price(path, name, buy, "dollars to buy one", "{buy: 1600}")
            buys[name] = Purchase(usd=float(buy), date="", source=str(path))
    shipped = shipped_prices(market)
    return Prices(
        date=shipped.date, gpus={**shipped.gpus, **rents}, bought={**shipped.bought, **buys}
    )


def _rent_and_buy(path: Path, name: str, value: Any) -> tuple[Any, Any]:
    """Return what an hour costs and what buying does; a plain number is an hour."""
    if not isinstance(value, dict):
        return value, None
    if not value or not set(value) <= {"rent", "buy"}:
        told = ", ".join(map(str, value)) or "nothing"
        raise FileFormatError(
            f"{path}: {name} has {told} and takes rent, buy or both; write "
            f"{name}: {{rent: 2.50, buy: 30000}}"
        )
    return value.get("rent"), value.get("buy")


def _in_dollars(path: Path, name: str, value: Any, currency: Money | None) -> Any:
    """Return dollars of an amount that names its currency; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        given = parse_money(value)
    except InputError:
        return value
    if given.currency == DOLLARS:
        return given.amount
    if currency is None or currency.currency != given.currency:
        raise FileFormatError(
            f"{path}: {name} costs {value!r}, and prices are in USD; say what one costs, "
            f"--currency {given.currency}=RATE, or write dollars"
        )
    return given.amount * currency.amount


def _known(path: Path, name: str) -> str:
    found = name if name == "local" else find_gpu(name)
    if not found:
        raise FileFormatError(
            f"{path}: {name!r} is no GPU that brimful gpus lists; use one of its names"
        )
    return found


def _check_price(path: Path, name: str, value: Any, what: str, example: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MOST_USD:
        raise FileFormatError(
            f"{path}: {name} costs {value!r} and a price is a number of {what}, 0 to "
            f"{MOST_USD}; write {name}: {example}"
        )


def cost_of(job: Job, cluster: Cluster, step_s: float | None, prices: Prices) -> Cost:
    """Predict what a run costs.

    hours = steps x seconds of a step; energy = GPU-hours x power limit x ``DRAW_SHARE`` x ``PUE``;
    dollars = GPU-hours x price. Ignores loading, evaluating, saving and lost work.

    Args:
        job: Says how many steps.
        cluster: How many GPUs, and of what kind.
        step_s: Seconds of one optimizer step; None: unknown.
        prices: The table.
    """
    hours = None if step_s is None else job.num_steps * step_s / HOUR_S
    gpu_hours = None if hours is None else hours * cluster.num_devices
    price = prices.gpus.get(cluster.name)
    rate = None if price is None else price.usd_per_gpu_hour
    return Cost(
        num_tokens=job.num_steps * job.tokens_per_step,
        num_steps=job.num_steps,
        hours=hours,
        gpu_hours=gpu_hours,
        energy_kwh=_energy_kwh(cluster, gpu_hours),
        usd_per_gpu_hour=rate,
        usd=None if rate is None or gpu_hours is None else rate * gpu_hours,
        assumptions=(_price_words(cluster, price), _energy_words(cluster)),
        whose="" if price is None else price.whose,
    )


def _energy_kwh(cluster: Cluster, gpu_hours: float | None) -> float | None:
    return None if gpu_hours is None else energy_kwh(cluster.device.name, gpu_hours, overhead=PUE)


def energy_kwh(gpu: str, gpu_hours: float, *, overhead: float = 1.0) -> float | None:
    """Return what GPUs draw while they train: hours x power limit x ``DRAW_SHARE`` x overhead.

    ``gpu``: its name; hosts are not counted. ``overhead``: what the building takes over what its
    machines take: ``PUE`` in a data centre, 1 at home. Returns kWh; None where its power limit is
    unknown.
    """
    sheet = datasheets().get(gpu)
    if sheet is None or sheet.tdp_w is None:
        return None
    return gpu_hours * HOUR_S * sheet.tdp_w * DRAW_SHARE * overhead / _JOULES_PER_KWH


def _price_words(cluster: Cluster, price: Price | None) -> str:
    if price is None:
        return f"price of {cluster.name} unknown; give one with --prices FILE"
    dated = f", {price.date}" if price.date else ""
    return f"{price.usd_per_gpu_hour:.2f} USD per GPU-hour ({price.source}{dated})"


def _energy_words(cluster: Cluster) -> str:
    sheet = datasheets().get(cluster.device.name)
    tdp_w = None if sheet is None else sheet.tdp_w
    if tdp_w is None:
        return f"power of {cluster.name} unknown"
    return (
        f"energy of GPUs only: {tdp_w} W each x {DRAW_SHARE:.0%} drawn (assumed) x {PUE} for the "
        "data centre (average of 2024, unchecked)"
    )
