"""Slices of a GPU (NVIDIA's MIG): which a name means, and what one has of its card."""

import re
from functools import cache
from importlib import resources

import msgspec

from brimful.hardware.cluster import Device, MatrixRates
from brimful.hardware.devices import gpus
from brimful.hardware.names import alike_gpus
from brimful.units import GIB

_FILE = "data/mig/profiles.json"
_NAME = re.compile(
    r"(?:(?P<card>.*?)[-_ :./]*)??(?:(?<![a-z0-9])mig[-_ :.]*)?(?P<profile>\d+g\.\d+gb)(?:\+\w+)*"
)
_MAKERS = frozenset({"nvidia.com", "nvidia"})
"""What stands before a profile in Kubernetes' names of resources."""
LEAST_SHARE = 0.92
"""What a slice has of its share of the card's memory, where nobody printed it: the least of those
that are listed (2g.24gb of an H100 NVL, 21.62 of 23.3 GiB)."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a slice has.

    Attributes:
        memory_slices: Of the memory and its bandwidth.
        compute_slices: Of the multiprocessors.
        listed_gib: What nvidia-smi or PyTorch says of its memory, in GiB; None: not known.
    """

    memory_slices: int
    compute_slices: int
    listed_gib: float | None = None


class Sliced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cards that are cut alike.

    Attributes:
        gpus: Keys of the table of GPUs; the usual one first.
        memory_slices: Into how many pieces the memory is cut.
        compute_slices: Into how many the multiprocessors are.
        profiles: By NVIDIA's names, ``3g.40gb``.
        source: The document.
    """

    gpus: tuple[str, ...]
    memory_slices: int
    compute_slices: int
    profiles: dict[str, Profile]
    source: str


@cache
def sliced() -> tuple[Sliced, ...]:
    """Read the shipped table, cards that a bare profile most often means first."""
    data = resources.files("brimful").joinpath(_FILE).read_bytes()
    return msgspec.json.decode(data, type=tuple[Sliced, ...])


def find_slice(text: str) -> str:
    """Find the slice that a name means, such as ``a100-80gb-mig-3g.40gb``; empty: none.

    ``text``: as people, drivers and Kubernetes write it; without a card the usual one is taken.
    """
    match = _NAME.fullmatch(text.strip().lower())
    if match is None:
        return ""
    card, profile = (match["card"] or "").strip(" -_:./"), match["profile"]
    names = [name for each in sliced() if profile in each.profiles for name in each.gpus]
    near = names[:1] if not card or card in _MAKERS else alike_gpus(card, names)
    return f"{near[0]}-mig-{profile}" if near else ""


def slice_like(gpu: str, num_gb: int) -> str:
    """Name the smallest slice of a card with so many GB on its label; empty: there is none."""
    profiles = [name for each in sliced() if gpu in each.gpus for name in each.profiles]
    alike = [name for name in profiles if name.endswith(f".{num_gb}gb")]
    return f"{gpu}-mig-{alike[0]}" if alike else ""


def slice_device(key: str) -> Device:
    """Return a slice as a device: its share of memory, bandwidth and rates."""
    name, _, profile_name = key.rpartition("-mig-")
    whole = gpus()[name]
    cut = next(each for each in sliced() if name in each.gpus)
    profile = cut.profiles[profile_name]
    memory = profile.memory_slices / cut.memory_slices
    compute = profile.compute_slices / cut.compute_slices
    listed = None if profile.listed_gib is None else round(profile.listed_gib * GIB)
    usable = round(whole.usable_bytes * memory * LEAST_SHARE) if listed is None else listed
    is_known = "listed" if listed is not None else f"assumed {LEAST_SHARE:.0%} of its share"
    rates = msgspec.structs.asdict(whole.matrix_flops_per_s)
    return msgspec.structs.replace(
        whole,
        name=key,
        description=f"{whole.description}, MIG {profile_name}",
        usable_bytes=min(usable, whole.usable_bytes),
        matrix_flops_per_s=MatrixRates(
            **{kind: rate and rate * compute for kind, rate in rates.items()}
        ),
        memory_bytes_per_s=whole.memory_bytes_per_s * memory,
        source=f"{whole.source}; slice: {profile.memory_slices} of {cut.memory_slices} of the "
        f"memory ({is_known}), {profile.compute_slices} of {cut.compute_slices} of the "
        f"multiprocessors, {cut.source}",
    )
