"""Which known GPU a name means, as people, clouds and drivers write it. Reads the table only.

A name is taken apart into the chip (``h100``; ``3090 ti``), how it is built (SXM, PCIe, NVL) and
its memory. The chip must be the same; of cards that then remain, the usual one is taken.
"""

import difflib
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from brimful.errors import InputError, UnknownNameError
from brimful.hardware.cluster import AMPERE
from brimful.hardware.datasheets import Datasheet, datasheets, is_built_in
from brimful.hardware.instances import find_instance
from brimful.units import GIB, Labelled

_DROPPED = frozenset(
    {
        "amd", "blackwell", "card", "cards", "core", "dgx", "edition", "generation", "geforce",
        "gpu", "gpus", "graphics", "gtx", "hgx", "instinct", "mega", "nvidia", "quadro", "radeon",
        "rtx", "rx", "tensor", "tesla", "workstation",
    }
)  # fmt: skip
"""Words of names that tell no two cards apart."""
_QUADRO = frozenset({"4000", "5000", "6000"})
"""Numbers that NVIDIA gave again: an RTX 6000 may be a Quadro, of Ada or of Blackwell."""
_FORMS = frozenset({"nvl", "pcie", "server", "sxm"})
_SAME = {"gb10": "spark", "mobile": "laptop", "notebook": "laptop"}
"""Words of names, and those of the table that say the same."""
_MEMORY = re.compile(r"(?<![a-z0-9])(\d{1,3})\s*g(?:i?b)?(?![a-z0-9])")
_BARE_MEMORY = re.compile(r"(?<=[a-z0-9])[-_ ]\d{2,3}$")
_HBM = re.compile(r"hbm\d?e?")
_CARD = re.compile(r"(\d{4})(ti|super|xtx|xt|gre|d)")
_COUNTED = re.compile(r"(?P<counts>(?:\d+\s*[x\u00d7*]\s*){1,2})(?P<gpu>.+)")
_COUNTED_ONCE = re.compile(r"(?P<counts>\d+\s*[x\u00d7*]\s*)(?P<gpu>.+)")
_COUNTED_BEHIND = re.compile(r"(?P<gpu>.+?)\s*(?::|[x\u00d7*])\s*(?P<count>\d+)")
_COUNTED_IN_WORDS = re.compile(r"(?P<count>\d+)\s+(?P<gpu>\D.+)")
_SLICED = re.compile(r"(?P<counts>(?:\d+\s*[x\u00d7*]\s*){0,2})(?P<gpu>.*\d+g\.\d+gb(?:\+\w+)*)")
"""A name of a slice (MIG), which ``slices.find_slice`` reads."""
_STRIX_HALO = re.compile(
    r"(amd )?ryzen[- ]?ai[- ]?max\+?([- ]?pro)?([- ]?3\d\d)?|framework[- ]?desktop|gmktec.*|8060s"
)
_SAME_SIZE = 0.07
"""B200 is sold as 192 GB and as 180 GB."""
_LONGEST = 100
_MAX_DIGITS = 9
_MOST_HINTS = 3
_ALIKE = 0.75
_A_SLIP = 0.85
"""So alike is a name to the one that was meant: one letter of seven or more."""
_USUAL_BYTES = {
    "3050": 8 * GIB, "3060": 12 * GIB, "4060": 16 * GIB, "5060": 16 * GIB, "a100": 80 * GIB,
    "a800": 80 * GIB, "h20": 96 * GIB, "v100": 16 * GIB,
}  # fmt: skip
"""Of chips that are sold or rented with two sizes of memory: the usual one."""


class Counted(NamedTuple):
    """What hardware a name asks for: nodes, devices of each, and what one is called."""

    num_nodes: int
    per_node: int
    gpu: str


class _Parts(NamedTuple):
    chip: frozenset[str]
    forms: frozenset[str]
    memory_gb: int


def split_counts(name: str) -> Counted:
    """Split ``4x8xh100`` into 4 nodes of 8 ``h100``; ``H100:8`` and ``8 h100s`` likewise.

    A machine that a cloud rents out (``p4d.24xlarge``) is a node with what is in it.
    """
    text = _folded(name)
    if find_gpu(text):  # "rtx 4090" asks for one
        return Counted(1, 1, text)
    if machines := _of_a_cloud(text):
        return machines
    if sliced := _SLICED.fullmatch(text):
        counts = re.findall(r"\d+", sliced["counts"] or "")
        return Counted(
            int(counts[0]) if len(counts) > 1 else 1, int((counts or [1])[-1]), sliced["gpu"]
        )
    if match := _of_one_node(text) or _COUNTED.fullmatch(text):
        counts = re.findall(r"\d+", match["counts"])
    elif match := _COUNTED_BEHIND.fullmatch(text) or _COUNTED_IN_WORDS.fullmatch(text):
        if not find_gpu(match["gpu"]):
            return Counted(1, 1, text)
        counts = [match["count"]]
    else:
        return Counted(1, 1, text)
    for count in counts:
        if len(count) > _MAX_DIGITS:
            raise InputError(f"{name} asks for {count} devices; use 1x{match['gpu']}")
    return Counted(int(counts[0]) if len(counts) > 1 else 1, int(counts[-1]), match["gpu"].strip())


def machine_of(text: str) -> str:
    """Return the name of the machine that a cloud rents out, without how many; empty: it is none.

    ``text``: as for ``split_counts``.
    """
    found = _machines(_folded(text))
    return found[1] if found else ""


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).strip().lower()[: _LONGEST * _LONGEST]


def _of_a_cloud(text: str) -> Counted | None:
    """Return the GPUs of one or several machines that a cloud rents out; None: it names none."""
    found = _machines(text)
    if found is None:
        return None
    count, machine = found
    per_node, _, gpu = find_instance(machine).partition("x")
    return Counted(count, int(per_node), gpu)


def _machines(text: str) -> tuple[int, str] | None:
    """Return how many of which machine of a cloud a text names; None: it names none."""
    before, behind = _COUNTED_ONCE.fullmatch(text), _COUNTED_BEHIND.fullmatch(text)
    named = [("1", text)]
    named += [(before["counts"].rstrip(" x\u00d7*"), before["gpu"])] if before else []
    named += [(behind["count"], behind["gpu"])] if behind else []
    for count, name in named:
        if len(count) <= _MAX_DIGITS and find_instance(name):
            return int(count), name
    return None


def _of_one_node(text: str) -> re.Match[str] | None:
    """Return a count and a GPU whose own name begins like a count, as a 7900xtx."""
    match = _COUNTED_ONCE.fullmatch(text)
    return match if match and find_gpu(match["gpu"]) else None


@lru_cache
def find_gpu(text: str) -> str:
    """Find the GPU of the table that a name means; empty where it means none.

    ``text``: one GPU's name, without a count.
    """
    name = text.strip().lower()
    if name in datasheets():
        return name
    if len(name) > _LONGEST:
        return ""
    given = _parts(name)
    called = [key for key, sheet in datasheets().items() if _is_called(name, sheet)]
    if not called and given.chip:
        called = alike_gpus(name, datasheets())
    if not called and not given.memory_gb and _BARE_MEMORY.search(name):  # a100-80
        return find_gpu(f"{name}gb")
    return min(called, key=lambda key: _unusual(given, key), default="")


def alike_gpus(text: str, keys: Iterable[str]) -> list[str]:
    """Return those of some GPUs that a name can mean, the most usual first.

    ``text``: one GPU's name, without a count.
    """
    given, sheets = _parts(text.strip().lower()), datasheets()
    named = [key for key in keys if key == text or _is_called(text, sheets[key])]
    called = named or [key for key in keys if given.chip and _can_be(given, key, sheets[key])]
    return sorted(called, key=lambda key: _unusual(given, key))


_APPLES = "one of Apple's"
_OLD_INSTINCT = "an Instinct before CDNA 2"
_OF_METAL, _OF_SMALL_METAL, _MOST_SMALL_GB = 3 / 4, 2 / 3, 32
"""Of a Mac's memory, what macOS leaves its GPU unless it is told otherwise
(``MTLDevice.recommendedMaxWorkingSetSize``), and up to which size it is the smaller share."""


def _is_called(name: str, sheet: Datasheet) -> bool:
    """Whether maker or driver call it exactly this; one name may be that of two sizes."""
    return name in {reported.lower() for reported in (*sheet.reported_names, sheet.description)}


_NOT_MODELLED = {
    r"(apple[- ]?)?m[3-9][- ]?ultra": (_APPLES, 96),
    r"(apple[- ]?)?m[12][- ]?ultra": (_APPLES, 64),
    r"(apple[- ]?)?m[3-9][- ]?max": (_APPLES, 36),
    r"(apple[- ]?)?m[12][- ]?max": (_APPLES, 32),
    r"(apple[- ]?)?m[4-9][- ]?pro": (_APPLES, 24),
    r"(apple[- ]?)?m3[- ]?pro": (_APPLES, 18),
    r"(apple[- ]?)?m(\d[- ]?pro|[4-9]\b)": (_APPLES, 16),
    r"(apple[- ]?)?m[1-3]\b": (_APPLES, 8),
    r"(amd[- ]?)?(radeon[- ]?|rx[- ]?)+(9070|7900[- ]?gre|7800|6[89]00)": ("a Radeon", 16),
    r"(amd[- ]?)?(radeon[- ]?)?vii\b": (_OLD_INSTINCT, 16),
    r"(amd[- ]?)?(radeon[- ]?)?(instinct[- ]?)?mi[- ]?25\b": (_OLD_INSTINCT, 16),
    r"(amd[- ]?)?(radeon[- ]?)?(instinct[- ]?)?mi[- ]?(50|60)\b": (_OLD_INSTINCT, 32),
    r"(amd[- ]?)?(radeon|rx[- ]?\d)": ("a Radeon", 0),
    r"(intel[- ]?)?(arc[- ]?)?a770": ("one of Intel's", 16),
    r"(intel[- ]?)?(arc[- ]?)?b580": ("one of Intel's", 12),
    r"(intel[- ]?|habana[- ]?)?gaudi[- ]?3": ("one of Intel's", 128),
    r"(intel[- ]?|habana[- ]?)?gaudi[- ]?2": ("one of Intel's", 96),
    r"(intel[- ]?)?(arc|gaudi)": ("one of Intel's", 0),
    r"(google[- ]?)?tpu": ("a TPU", 0),
}  # fmt: skip
"""What people have whose allocator and kernels nobody described here, and the GB of memory that it
is sold with at most (of those that are sold with one size: with it; Apple's: at least, as Apple's
technical specifications of each say); 0: the name does not say."""


def unknown_gpu(text: str, *, known: tuple[str, ...] = ()) -> UnknownNameError:
    """Build the error for a name that means no known GPU, with those of its chip or the like."""
    name = text.strip().lower()[:_LONGEST]
    given = _parts(name).memory_gb
    for pattern, (whose, usual) in _NOT_MODELLED.items():
        if re.match(pattern, name):
            return _not_modelled(text, whose, given or usual, is_said=given > 0)
    chips = _parts(name).chip
    names = [*sorted(datasheets(), key=is_built_in), *known]
    near = _of_one_family(chips, names)
    if not near and not any(map(_generation, chips)):
        near = [each for each in names if _alike(name, each) >= _ALIKE]
    if not any(chips & _parts(each).chip for each in near):  # else it is the form that is none's
        near.sort(key=lambda each: (-_alike(name, each), len(each)))
    hint = f"did you mean {' or '.join(near[:_MOST_HINTS])}? " if near else ""
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    is_slip = bool(near) and _alike(name, near[0]) >= _A_SLIP
    return UnknownNameError(
        f"unknown GPU {shown!r}; {hint}brimful gpus lists them",
        nearest={"gpus": near[0]} if is_slip else None,
    )


def _alike(name: str, key: str) -> float:
    """Return how alike a name and a GPU's are, with its memory and without; 1: the same."""
    spellings = (key, _MEMORY.sub("", key).rstrip("- "))
    return max(difflib.SequenceMatcher(None, name, each).ratio() for each in spellings)


def with_memory(text: str, memory_bytes: int) -> str:
    """Return the name of a machine that is sold with several sizes of memory, with one of them.

    Returns the text as it is where it names a GPU, or says a size itself.
    """
    name = text.strip().lower()[:_LONGEST]
    is_sized = any(re.match(pattern, name) for pattern in _NOT_MODELLED)
    return f"{text}-{memory_bytes // GIB}gb" if is_sized and not _parts(name).memory_gb else text


def _not_modelled(text: str, whose: str, memory_gb: int, *, is_said: bool) -> UnknownNameError:
    """Build the error for what is no GPU of ours, with the card that has as much memory."""
    share = _OF_SMALL_METAL if memory_gb <= _MOST_SMALL_GB else _OF_METAL
    held = math.floor(memory_gb * share) if whose == _APPLES else memory_gb
    near = _as_large(held) if held else ""
    kept = ""
    if whose == _APPLES:
        least = "" if is_said else ", the least it is sold with; m4-max-64gb says another size"
        kept = f" (macOS keeps the rest of {memory_gb}{least})"
    stands_in = (
        f"{near} stands in, with {held} GB{kept}: what fits carries over roughly, speed is unknown"
        if near
        else "ask of a card with as much memory, or give it with the name (gaudi-96gb)"
    )
    return UnknownNameError(
        f"{text!r} is {whose}, which this version does not model (NVIDIA's GPUs, AMD's "
        f"and CPUs it does); {stands_in}: brimful gpus lists them",
        nearest={"gpus": near, "card_memory": Labelled(held * GIB)} if near else {},
    )


def _as_large(memory_gb: int) -> str:
    """Return the GPU with CUDA whose memory is nearest, of equal ones that with shared memory.

    One that has no bf16 would be planned in fp16, and by other kernels of attention.
    """
    sheets = {
        key: sheet
        for key, sheet in datasheets().items()
        if sheet.maker == "NVIDIA" and sheet.capability >= AMPERE
    }

    def distance(key: str) -> tuple[float, bool]:
        return abs(sheets[key].memory_bytes / GIB - memory_gb), not is_built_in(key)

    return min(sheets, key=distance)


def _of_one_family(chips: frozenset[str], names: Sequence[str]) -> list[str]:
    """Return the names of the same number, else of the same generation, else of the same words.

    Where a number is none's and of no generation, those that have its digits in another order.
    """
    numbers = {chip for chip in chips if any(map(str.isdigit, chip))}
    near = [name for name in names if numbers & _parts(name).chip]
    generations = set(filter(None, map(_generation, chips)))
    if not near and generations:
        near = [n for n in names if generations & set(map(_generation, _parts(n).chip))]
    if not near and numbers:
        turned = set(map(_digits, numbers))
        near = [n for n in names if turned & set(map(_digits, _parts(n).chip))]
    return near if near or numbers else [name for name in names if chips & _parts(name).chip]


def _digits(chip: str) -> str:
    """Return what a chip is called by, in order of its letters: of 4900 as of 4090."""
    return "".join(sorted(chip))


def _generation(chip: str) -> str:
    """Return the first two digits of a number of four: 40 of 4090; empty of anything else."""
    return chip[:2] if len(chip) == len("4090") and chip.isdecimal() else ""


def _can_be(given: _Parts, key: str, sheet: Datasheet) -> bool:
    own = _key_parts(key)
    if given.chip != own.chip:
        return False
    described = _parts(sheet.description.lower()).forms | own.forms
    if not given.forms <= described:
        return False
    size = sheet.memory_bytes / GIB
    return not given.memory_gb or abs(given.memory_gb / size - 1) <= _SAME_SIZE


def _unusual(given: _Parts, key: str) -> tuple[float, ...]:
    """Order cards of one chip: built as nothing was said of, the usual memory, the nearest."""
    own, sheet = _key_parts(key), datasheets()[key]
    usual = next((_USUAL_BYTES[chip] for chip in own.chip if chip in _USUAL_BYTES), 0)
    off = abs(given.memory_gb / (sheet.memory_bytes / GIB) - 1) if given.memory_gb else 0.0
    return (off, len(own.forms - given.forms), bool(usual) and usual != sheet.memory_bytes)


@cache
def _key_parts(key: str) -> _Parts:
    return _parts(key)


def _parts(name: str) -> _Parts:
    memory = _MEMORY.search(name)
    text = _STRIX_HALO.sub("strix halo", _MEMORY.sub(" ", name))
    text = re.sub(r"radeon (ai )?pro", " ", text)
    text = re.sub(r"(?<![a-z])(rtx|gtx|rx)(?=[a-z]?\d)", r"\1 ", text)
    text = re.sub(r"sxm\d?", "sxm", text)
    chip, forms = set(), set()
    for word in re.sub(r"[^a-z0-9]+", " ", _CARD.sub(r"\1 \2 ", text)).split():
        token = _SAME.get(word, word)
        if _HBM.fullmatch(token) or token in _DROPPED:
            continue
        if token in _FORMS:
            forms.add(token)
        else:
            chip.add(token[:-1] if token.endswith("s") and token[:-1] in _chips() else token)
    if "quadro" in text and chip <= _QUADRO:
        chip.add("quadro")
    return _Parts(frozenset(chip), frozenset(forms), int(memory[1]) if memory else 0)


@cache
def _chips() -> frozenset[str]:
    """Chips that are written with a plural s; L40S is one of its own."""
    tokens = {token for key in datasheets() for token in key.split("-")}
    return frozenset(token for token in tokens if f"{token}s" not in tokens)
