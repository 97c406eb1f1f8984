"""What a finished run costs: hours, GPU-hours, energy, dollars.

Prices are those of one day and one seller, dated and cited in ``data/prices``; the user's own
replace them. Owns that folder and its schema.
"""

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from brimful.errors import FileFormatError
from brimful.hardware.cluster import Cluster
from brimful.hardware.datasheets import datasheets
from brimful.job import Job
from brimful.plan import load_yaml

_FOLDER = "data/prices"
_HOUR_S = 3600.0
_JOULES_PER_KWH = 3.6e6
DRAW_SHARE = 0.85
"""Of a GPU's power limit, drawn while it trains; assumed."""
PUE = 1.56
"""What a data centre takes over what its machines take: average of a survey of 2024 (Uptime
Institute, from memory, unchecked)."""


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an hour of a GPU cost, when, and where."""

    usd_per_gpu_hour: float
    date: str
    source: str


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of prices.

    Attributes:
        date: Of its newest row.
        gpus: GPU to price.
    """

    date: str
    gpus: dict[str, Price]


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run costs; None where something that it rests on is unknown.

    Attributes:
        num_tokens: That the run sees, padding included.
        num_steps: Optimizer steps.
        hours: Of the wall clock, without loading, evaluating and saving.
        gpu_hours: The same times the devices.
        energy_kwh: Of the GPUs, with what the data centre takes for them; hosts are not counted.
        usd_per_gpu_hour: The price.
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
    assumptions: tuple[str, ...]


@cache
def shipped_prices() -> Prices:
    """Read the newest table that ships."""
    files = resources.files("brimful").joinpath(_FOLDER).iterdir()
    newest = max((f for f in files if f.name.endswith(".json")), key=lambda file: file.name)
    return msgspec.json.decode(newest.read_bytes(), type=Prices)


def read_prices(path: Path) -> Prices:
    """Read the user's prices over those that ship.

    Args:
        path: YAML or JSON: name of a GPU, as in ``brimful gpus``, to dollars per GPU-hour.

    Raises:
        FileFormatError: It cannot be read, or holds something that is no price.
    """
    given = load_yaml(path)
    if not isinstance(given, dict) or not given:
        raise FileFormatError(f"{path} holds no prices; write lines such as h100-80gb: 2.50")
    own = {str(name): _own_price(path, str(name), value) for name, value in given.items()}
    shipped = shipped_prices()
    return Prices(date=shipped.date, gpus={**shipped.gpus, **own})


def _own_price(path: Path, name: str, value: Any) -> Price:
    known = name in datasheets() or name == "local"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not known:
        raise FileFormatError(
            f"{path}: {name!r} is no GPU that brimful gpus lists; use one of its names"
        )
    if not is_number or not 0 <= value < float("inf"):
        raise FileFormatError(
            f"{path}: {name} costs {value!r} and a price is a number of dollars per GPU-hour, 0 or "
            f"more; write {name}: 2.50"
        )
    return Price(usd_per_gpu_hour=float(value), date="", source=str(path))


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
    hours = None if step_s is None else job.num_steps * step_s / _HOUR_S
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
    )


def _tdp_w(cluster: Cluster) -> int | None:
    sheet = datasheets().get(cluster.device.name)
    return None if sheet is None else sheet.tdp_w


def _energy_kwh(cluster: Cluster, gpu_hours: float | None) -> float | None:
    tdp_w = _tdp_w(cluster)
    if tdp_w is None or gpu_hours is None:
        return None
    return gpu_hours * _HOUR_S * tdp_w * DRAW_SHARE * PUE / _JOULES_PER_KWH


def _price_words(cluster: Cluster, price: Price | None) -> str:
    if price is None:
        return f"price of {cluster.name} unknown; give one with --prices FILE"
    dated = f", {price.date}" if price.date else ""
    return f"{price.usd_per_gpu_hour:.2f} USD per GPU-hour ({price.source}{dated})"


def _energy_words(cluster: Cluster) -> str:
    tdp_w = _tdp_w(cluster)
    if tdp_w is None:
        return f"power of {cluster.name} unknown"
    return (
        f"energy of GPUs only: {tdp_w} W each x {DRAW_SHARE:.0%} drawn (assumed) x {PUE} for the "
        "data centre (average of 2024, unchecked)"
    )
