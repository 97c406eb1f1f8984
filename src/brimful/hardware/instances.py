"""What clouds call a machine with GPUs (``p4d.24xlarge``), and which GPUs are in it. No torch."""

import re
from functools import cache
from importlib import resources

import msgspec

_FILE = "data/instances.json"
_BEFORE = re.compile(r"(?:aws|ec2|sagemaker|gcp|gce|azure|oci|oracle)[\s:/-]+|ml\.|standard[\s_-]+")
"""What may stand before a name: whose it is, or of which of their services."""
_BETWEEN = re.compile(r"[\s_-]+")


class Cloud(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cloud's machines.

    Attributes:
        cloud: Who rents them out.
        source: The page that lists them.
        gpus: By name in small letters: how many of which GPU, as in ``8xa100-40gb``.
        networks: Of those of these that have one: what lies between several of them, a GPU's share
            of its rate, of ``links.network_names``.
        networks_source: Where those rates stand, and which are recalled and unchecked.
    """

    cloud: str
    source: str
    gpus: dict[str, str]
    networks: dict[str, str]
    networks_source: str


@cache
def clouds() -> tuple[Cloud, ...]:
    """Read the shipped table."""
    data = resources.files("brimful").joinpath(_FILE).read_bytes()
    return msgspec.json.decode(data, type=tuple[Cloud, ...])


@cache
def _machines() -> dict[str, str]:
    return {_plain(name): gpus for each in clouds() for name, gpus in each.gpus.items()}


def find_instance(text: str) -> str:
    """Find the GPUs of a machine that a cloud rents out; empty where a name means none.

    ``text``: one machine's name, as the cloud or one of its services writes it. Returns how many of
    which, as in ``8xa100-40gb``.
    """
    return _machines().get(_plain(text), "")


def listed_name(text: str) -> str:
    """Return a machine's name as the table has it; empty: it is none's."""
    name = _plain(text)
    every = (listed for each in clouds() for listed in each.gpus)
    return next((listed for listed in every if _plain(listed) == name), "")


def network_of_instances(text: str) -> str:
    """Return what lies between machines of a name, without how many; empty: unknown."""
    name = _plain(text)
    named = (pair for each in clouds() for pair in each.networks.items())
    return next((network for machine, network in named if _plain(machine) == name), "")


def cloud_of(text: str) -> str:
    """Return whose machine a name is, without how many; empty: it is none's."""
    name = _plain(text)
    return next((each.cloud for each in clouds() if name in map(_plain, each.gpus)), "")


def _plain(text: str) -> str:
    name = text.strip().lower()
    while match := _BEFORE.match(name):
        name = name[match.end() :]
    return _BETWEEN.sub("-", name)
