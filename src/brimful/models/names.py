"""Which known model a name means, as people and hubs write it. Reads the registry, and no files.

A name is taken apart into its family and other words, versions, sizes and revisions; what says how
weights were tuned, quantised or packed names no architecture and is dropped. Both the names of the
registry and those of its models on the hub are taken apart alike, and compared part by part.
"""

import contextlib
import difflib
import math
import re
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from brimful.errors import UnknownNameError
from brimful.models.closed import closed_words
from brimful.models.language_parts import find_part
from brimful.models.name_parts import (
    COUNTS,
    DROPPED,
    HUB,
    LONGEST,
    REVISION,
    Parts,
    family_of,
    points_for_dashes,
    read_count,
    spaced,
    split_publisher,
    taken_apart,
)
from brimful.models.registry import registry
from brimful.models.slips import respelt
from brimful.units import format_count

MIRRORS = frozenset(
    {
        "bartowski", "casperhansen", "ggml-org", "hugging-quants", "lmstudio-community",
        "maziyarpanahi", "meta", "mlx-community", "mradermacher", "neuralmagic", "nousresearch",
        "nvidia", "quanttrio", "redhatai", "thebloke", "unsloth",
    }
)  # fmt: skip
"""Who uploads other people's models under their own names, quantised or for other programs."""
_NEAR = 0.1
"""What a size in a name may be off: Phi-4 has 14.66 B parameters and is called 14B."""
_FAR = 2.0
"""A factor in size beyond which a model of another family that is nearer says more."""
_RESPELT = 1.3
"""A factor in size beyond which a family that a name is only almost spelt as is not meant."""
_ALIKE = 0.01
"""What the sizes of two models differ by that differ in their positions."""
_AS_LARGE = 1.1
"""A factor in size within which the newer generation of a family says more."""
_IMAGES = "its language part is {}, without what images and sounds and their encoders take"
IMAGES = "images"
"""What comes on top of the language part; see ``BrimfulError.on_top``."""
_QUALIFIERS = {
    "vl": _IMAGES, "vision": _IMAGES, "omni": _IMAGES, "audio": _IMAGES,
    "1m": "of fewer positions there is {}", "128k": "of fewer positions there is {}",
}  # fmt: skip
"""Words that a known model lacks which has the same blocks, and what it is then."""
NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""What configurations call the number of experts."""
_HYBRID = re.compile(
    r"[jzbs]amba|nemotron-?h(?![a-z])|falcon-?h\d|granite-?4.*-h(?![a-z])|hymba|lfm2|qwen3-next"
    r"|kimi-?linear|ring.*linear"
)
"""Families some of whose blocks attend, and some are state spaces, convolutions or linear."""
_STATE_SPACE = re.compile(r"mamba|rwkv|retnet|hyena|xlstm|recurrentgemma|griffin|state-?space")
"""Families without attention; hybrids' names may hold these words."""
_MIXTURE = re.compile(r"(?<![a-z])(moe|mixture)(?![a-z])")
"""Words of a name that say that it is a mixture of experts."""
_MOST_LISTED = 12
_MOST_HINTS = 3
_SAME_WORD = 0.75


class Taken(NamedTuple):
    """A known model that a name was taken for.

    Attributes:
        name: Its name in the registry.
        why: What of the name was not said or not known, in words; empty where nothing was.
        is_own: Whether the name gives no organisation, or one that is known to publish this model.
    """

    name: str
    why: str
    is_own: bool


def find(text: str) -> Taken | None:
    """Find the known model that a name means.

    ``text``: as it was typed: a name of any spelling, a hub id, an address on the hub. Returns the
    model; None where the name means none that is known.
    """
    if text in registry():
        return Taken(text, "", is_own=True)
    organisation, name = split_publisher(text)
    if not name or len(name) > LONGEST:
        return None
    best = _best(name) or _best(points_for_dashes(name)) or _whole_family(name)
    if not best:
        return None
    chosen = _newest(best) if len(best) > 1 else best[0]
    if chosen is None:
        listed = ", ".join(match.name for match in best[:_MOST_LISTED])
        more = len(best) - _MOST_LISTED
        others = f" and {more} more" if more > 0 else ""
        raise UnknownNameError(
            f"{text!r} may be any of {listed}{others}; give one of them (brimful models lists all)"
        )
    why = chosen.why
    if len(best) > 1:
        others = ", ".join(match.name for match in best if match is not chosen)
        why = f"the newest of them; others: {others}"
    return Taken(chosen.name, why, is_own=organisation in {"", *MIRRORS, *_organisations()})


_TO_RUN = "gguf"
"""Of a name: a format that nothing trains."""


def taken_words(typed: str, name: str) -> str:
    """Say that a known model was taken for what was typed; empty where that is its name."""
    if typed == name or name not in registry():
        return ""
    taken = find(typed)
    if taken is None or spaced(typed).split() == spaced(name).split():
        return ""
    why = taken.why or ("the same architecture" if taken.is_own else "by its name alone")
    if _TO_RUN in typed.lower():
        why = f"{why}; a GGUF is for running: what trains are the weights that it was made of"
    return f"model {name} is taken for {typed!r} ({why})"


def suggestions(text: str) -> list[str]:
    """Name known models of the family that an unknown name is of, the likest first; maybe none."""
    name = split_publisher(text)[1][:LONGEST]
    parts = taken_apart(name)
    families = {family_of(known): None for known in registry()}
    words = [word for word in re.findall(r"[a-z]+", spaced(name)) if word not in DROPPED]
    meant = [word for word in words if word in families]
    if words and not meant:
        meant = difflib.get_close_matches(words[0], families, n=1, cutoff=_SAME_WORD)
    likeness = {
        known: _likeness(parts, taken_apart(known), name.lower(), known)
        for known in registry()
        if family_of(known) in meant
    }
    near = sorted(likeness, key=lambda known: likeness[known], reverse=True)[:_MOST_HINTS]
    shares = [known for known in near if any(likeness[known][1:3])]
    return shares or near


def unknown_model(text: str, *, more: str) -> UnknownNameError:
    """Build the error for a name that means no known model."""
    if closed := closed_words(text):
        return UnknownNameError(f"{text[:LONGEST]!r} is no open model: {closed}")
    near = suggestions(text)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return UnknownNameError(f"unknown model {shown!r}; {hint}{more}")


def without_qualifiers(text: str) -> tuple[str, str, str]:
    """Find a known model that has the blocks of an unknown one: its language part's, or all.

    It is named in a table, or its name is the other's but for a word.

    ``text``: the name that is not known. Returns the model, what it is to the other, in words, and
    what comes on top of it; all empty where there is none.
    """
    part = find_part(text)
    if part is not None:
        beside = f", and {part.beside}" if part.beside else ""
        return part.model, f"{_IMAGES.format(part.model)}{beside}", IMAGES
    for word, what in _QUALIFIERS.items():
        name, num = re.subn(rf"(?<![a-z0-9]){word}(?![a-z0-9])", "", text, flags=re.IGNORECASE)
        try:
            taken = find(re.sub("--+", "-", name).strip("-")) if num else None
        except UnknownNameError:
            continue
        if taken is not None and taken.is_own:
            return taken.name, what.format(taken.name), IMAGES if what == _IMAGES else ""
    return "", "", ""


def misspelt(text: str) -> tuple[str, str, str]:
    """Find the known model that a name means but for a letter or two in a word.

    ``text``: the name that is not known. Returns the model, whose name it is almost, in words, and
    what comes on top of it, as of ``without_qualifiers``; all empty where there is none.
    """
    for meant in respelt(text):
        with contextlib.suppress(UnknownNameError):
            if (taken := find(meant)) is not None:
                return taken.name, f"{text!r} is spelt almost as {taken.name}", ""
        near, what, on_top = without_qualifiers(meant)
        if near:
            part = find_part(meant)
            name = part.of if part else meant
            return near, f"{text!r} is spelt almost as {name} ({what})", on_top
    return "", "", ""


def nearest_by_name(text: str, preferred: frozenset[str]) -> tuple[str, str]:
    """Find a known model that is as large as the name of an unknown one says.

    ``text``: the name that is not known. ``preferred``: types of models that are rather named than
    others. Returns the model, and why it, in words; both empty where the name says no size, and no
    model of its version is known.
    """
    families = {family_of(known) for known in registry()}
    meant = next((each for each in respelt(text) if family_of(each) in families), text)
    family, typed = (split_publisher(each)[1].lower() for each in (meant, text))
    parts = taken_apart(family[:LONGEST])
    counts = [count for size in parts.sizes if (count := read_count(size))]
    if not parts.sizes:
        # Find a known model whose name is another's but for the numbers that it ends in: no size.
        name = family[:LONGEST]
        shared = {known: _num_shared(known, name) for known in registry()}
        like = [
            known
            for known, num in shared.items()
            if re.search(r"\d", name[:num]) and not re.search(r"[a-z]", known[num:] + name[num:])
        ]
        if not like:
            return "", ""
        near = max(like, key=lambda known: (shared[known], -len(known)))
        size = format_count(num_parameters(registry()[near]))
        return near, f"its name says no size; the nearest name is {near} ({size})"
    if len(counts) != 1 or not counts[0] or len(parts.sizes) > 1:
        return "", ""
    near = _nearest(counts[0], family, active=parts.active, preferred=preferred)
    if family != typed and _factor(near, counts[0]) > _RESPELT:
        near = _nearest(counts[0], typed, active=parts.active, preferred=preferred)
    size = format_count(num_parameters(registry()[near]))
    is_mixture = bool(parts.active) or _MIXTURE.search(family) is not None
    sort = ", and is a mixture of experts" if is_mixture else ""
    said = f"by its name it has {format_count(counts[0])} parameters{sort}"
    return near, f"{said}; the nearest is {near} ({size}), whose blocks may be others"


def _factor(known: str, size: float) -> float:
    """Return how many times larger or smaller than a size a known model is."""
    ratio = num_parameters(registry()[known]) / size
    return max(ratio, 1 / ratio)


def unlike(text: str, near: str) -> str:
    """Say why nothing of one model says what another takes; empty where their blocks are of a kind.

    ``text``: the name that is not known.
    """
    name, is_hybrid = split_publisher(text)[1].lower(), _has_state_spaces(registry()[near])
    called_hybrid = _HYBRID.search(name) is not None
    called_pure = not called_hybrid and _STATE_SPACE.search(name) is not None
    is_strange = is_hybrid and not called_hybrid and family_of(near) != family_of(name)
    if not called_pure and not is_strange and (is_hybrid or not called_hybrid):
        return ""
    kind = "attention and state spaces" if is_hybrid else "attention"
    return f"its blocks are of another kind than those of {near}, which are of {kind}"


def _has_state_spaces(entry: dict[str, Any]) -> bool:
    """Whether some blocks of a known model are no attention."""
    return any(field.startswith(("conv_L", "linear_", "mamba", "ssm")) for field in entry["config"])


def _num_shared(one: str, other: str) -> int:
    """Count the characters with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (mine, its) in pairs if mine != its), min(len(one), len(other)))


def _nearest(size: float, name: str, *, active: frozenset[str], preferred: frozenset[str]) -> str:
    """Name the known model of the same sort that is nearest in size, of a family where it may be.

    ``active``: what its name says of experts: how many parameters compute a token, or how many
    there are.
    """
    is_mixture = bool(active) or _MIXTURE.search(name) is not None

    sizes = taken_apart(name).sizes

    def distance(
        known: str,
    ) -> tuple[bool, bool, bool, bool, bool, bool, bool, int, int, float, float, int]:
        factor = _factor(known, size)
        entry = registry()[known]
        is_other = has_experts(entry["config"]) != is_mixture
        is_denser = bool(active) and not active & taken_apart(known).active
        is_strange = family_of(known) != family_of(name)
        # of one's own family who names the same size is meant, whichever version that is
        is_sized = not is_strange and not sizes.isdisjoint(taken_apart(known).sizes)
        is_rarer = entry["model_type"] not in preferred
        is_copy = not is_named_as_its_type(known, entry["model_type"])
        steps = round(math.log(factor) / math.log(_AS_LARGE))
        return (
            factor > _FAR, is_other, is_strange, is_denser, not is_sized, is_rarer, is_copy,
            0 if is_strange else len(_words(known) - _words(name)), steps,
            -_generation(known), round(factor, 2), len(known),
        )  # fmt: skip

    return min(registry(), key=distance)


def _words(name: str) -> set[str]:
    """Return the words of a name, by which a tune is told from what it was made of."""
    return set(re.findall("[a-z]{2,}", name))


def is_named_as_its_type(known: str, model_type: str) -> bool:
    """Whether a known model's family is that of its type, and it is no tune of another name.

    ``known``: its name: of a Llama ``llama-3-8b`` or ``codellama-7b``.
    """
    family, kind = family_of(known), family_of(model_type)
    return family in kind or kind in family


def _generation(name: str) -> float:
    """Return which of its family a name says, 3.1 of ``llama-3.1-8b``; 0: none, as mT5's."""
    found = re.match(r"(?![a-z]*[et]5\b)[a-z]+-?(\d+(?:\.\d+)?)(?![\d.]*[bm]\b)", name)
    return float(found[1]) if found else 0.0


def has_experts(config: dict[str, Any]) -> bool:
    """Whether a configuration, of any architecture, is of a mixture of experts."""
    counts = (config.get(field) for field in NUM_EXPERTS)
    return any(isinstance(count, int) and count > 1 for count in counts)


def longer(name: str, seq_len: int) -> tuple[str, ...]:
    """Name the known models that are as large as another, of its type, and take longer texts.

    ``name``: of a model that may be of the registry. ``seq_len``: tokens that they take at least.
    """
    if name not in registry():
        return ()
    entry, size = registry()[name], num_parameters(registry()[name])
    return tuple(
        known
        for known, other in registry().items()
        if other["model_type"] == entry["model_type"]
        and other["config"].get("max_position_embeddings", 0) >= seq_len
        and abs(num_parameters(other) / size - 1) <= _ALIKE
    )


class _Match(NamedTuple):
    name: str
    penalty: tuple[int, int, int]
    why: str


def _best(name: str) -> list[_Match]:
    """List the models that a name can mean, of the fewest things left out."""
    parts = taken_apart(name)
    if not parts.words:
        return []
    found = [match for known in registry() if (match := _match(parts, known))]
    least = min((match.penalty for match in found), default=None)
    return [match for match in found if match.penalty == least]


def _whole_family(name: str) -> list[_Match]:
    """List the models of a family where a name says nothing but that, and which revision it is."""
    parts = taken_apart(name)
    others = {*parts.versions, *parts.sizes, *parts.active, *parts.revisions}
    if not parts.words or any(not REVISION.fullmatch(other) for other in others):
        return []
    members = [known for known in registry() if taken_apart(known).words == parts.words]
    return [_Match(known, (0, 0, 0), "the only one that is known") for known in members]


def _match(given: Parts, known: str) -> _Match | None:
    """Compare a name with every one that a model has."""
    aliases = _aliases(known)
    has_revision = any(alias.revisions for alias in aliases)
    matches = [
        _Match(known, penalty, _why(penalty))
        for alias in aliases
        if (penalty := _penalty(given, alias, known, has_revision=has_revision)) is not None
    ]
    return min(matches, key=lambda match: match.penalty, default=None)


def _penalty(
    given: Parts, alias: Parts, known: str, *, has_revision: bool
) -> tuple[int, int, int] | None:
    """Count what one of the two does not say: sizes, active parameters, revisions; None: unlike."""
    if (given.words, given.versions) != (alias.words, alias.versions):
        return None
    if not given.sizes <= alias.sizes and (alias.sizes or not _is_near(given.sizes, known)):
        return None
    if not given.active <= alias.active:
        return None
    extra = given.revisions - alias.revisions
    if extra and has_revision:
        return None
    return (
        len(alias.sizes - given.sizes),
        len(alias.active - given.active) if given.sizes else 0,
        2 * len(extra) + len(alias.revisions - given.revisions),
    )


def _why(penalty: tuple[int, int, int]) -> str:
    if penalty[0]:
        return "the only size that is known"
    if penalty[2] > 1:
        return "a revision that is not known apart"
    return ""


def _is_near(sizes: Iterable[str], known: str) -> bool:
    """Whether a size is about the number of a model's parameters."""
    count = num_parameters(registry()[known])
    read = [re.fullmatch(r"(\d+(?:\.\d+)?)([mbt])", size) for size in sizes]
    return all(
        found and abs(float(found[1]) * COUNTS[found[2]] / count - 1) <= _NEAR for found in read
    )


def num_parameters(entry: dict[str, Any]) -> float:
    """Return the parameters of a registered model, rounded where nothing else is published."""
    count = entry.get("num_parameters") or entry["num_parameters_official"]
    if count is not None:
        return float(count)
    published = entry["published"].lower()
    return float(published[:-1]) * COUNTS[published[-1]]


def _newest(matches: list[_Match]) -> _Match | None:
    """Return the newest of several that differ in their revision alone; None: they do not."""
    parts = {match: taken_apart(match.name) for match in matches}
    without = {each._replace(revisions=frozenset()) for each in parts.values()}
    if len(without) > 1 or not any(each.revisions for each in parts.values()):
        return None
    return max(matches, key=lambda match: sorted(parts[match].revisions))


@cache
def _aliases(known: str) -> tuple[Parts, ...]:
    """Take apart the registry's name of a model and the hub's."""
    source = registry()[known]["source"]
    names = [known, split_publisher(source)[1]] if HUB.match(source) else [known]
    return tuple(dict.fromkeys(taken_apart(name) for name in names))


@cache
def _organisations() -> frozenset[str]:
    sources = (entry["source"] for entry in registry().values())
    return frozenset(split_publisher(source)[0] for source in sources if HUB.match(source))


def _likeness(given: Parts, other: Parts, typed: str, known: str) -> tuple[int, int, int, float]:
    spelled = difflib.SequenceMatcher(None, typed, known).ratio()
    shared = len(given.sizes & other.sizes), len(given.versions & other.versions)
    return int(given.words == other.words), *shared, spelled
