"""A name taken apart: family, versions, sizes, revisions; what says how weights are packed goes.

Knows no registry.
"""

import re
import unicodedata
from typing import NamedTuple

HUB = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/")
_DASHES = re.compile(r"[\u2010-\u2015\u2212]")
_POINT_AS_UNDERSCORE = re.compile(r"(?<![\d.])(\d)_(\d)(?![\d.a-z])")
_POINT_AS_P = re.compile(r"\bv(\d)p(\d)\b")
_QUANTIZED = re.compile(
    r"\b(?:(?:ud )?i?q\d(?:[ .][01k])?(?: (?:xxs|xs|xl|s|m|l))?|\d ?bits?|\d+(?:\.\d+)? ?bpw"
    r"|(?:u?int|bf|fp|f|nf|mxfp|nvfp)\d{1,2}|w\d+a\d+|g\d{2,3}|exl\d|ct2"
    r"|awq|gptq|gguf|ggml|bnb|mlx|onnx|hqq|dwq|qat|imatrix|marlin|quantized|quants?|unsloth"
    r"|dynamic|kv)\b"
)
"""How the weights of an upload are rounded, or whose program they are packed for."""
_FORMATS = (
    (r"bnb 8 ?bits?|llm int8", "llm-int8"),
    (r"(?:unsloth )?bnb 4 ?bits?|bnb|nf4", "nf4"),
    (r"(?:gptq |awq )?int8|gptq 8 ?bits?|w8a8|w8a16|fp8(?: dynamic)?|8 ?bits?", "int8"),
    (r"awq(?: int4)?|gptq(?: int4)?|w4a16|int4|(?:mx|nv)fp4|fp4|4 ?bits?", "int4"),
)
"""Words of names, and the format that is as large: fp8 takes a byte a weight, as int8 does."""
DROPPED = frozenset(
    {
        # How it was tuned, or which step of its training it is.
        "base", "chat", "exp", "free", "hf", "inst", "instant", "instruct", "instruction", "it",
        "latest", "preview", "pretrained", "pt", "sft", "text", "thinking", "turbo", "uncased",
        "versatile",
        # Whose it is.
        "google", "meta", "microsoft", "mistralai", "nvidia", "openai",
    }
)  # fmt: skip
"""Words of names that name no architecture."""
_SIZE = re.compile(r"\d+(?:\.\d+)?[mbt]|\d+x\d+(?:\.\d+)?b")
_ACTIVE = re.compile(r"a\d+(?:\.\d+)?b|\d+e")
_DATE = re.compile(r"\d{4}|\d{6}|\d{8}")
REVISION = re.compile(r"v\d+(?:\.\d+)*")
_VERSION = re.compile(r"[a-z]?\d+(?:\.\d+)*")
_WORD = re.compile(r"[a-z]+|[et]5")
_JOINED = re.compile(r"(?<![a-z\d.])([a-z]{2,})(?=\d)")
COUNTS = {"m": 1e6, "b": 1e9, "t": 1e12}
LONGEST = 200


class Parts(NamedTuple):
    """A name taken apart.

    Attributes:
        words: Family and variant in one, so that ``tiny-llama`` is ``tinyllama``; T5 and E5 are
            families.
        versions: ``3.1`` of Llama 3.1, ``r1`` of DeepSeek R1; and what fits nowhere else.
        sizes: ``8b``, ``8x7b``.
        active: Of mixtures: active parameters ``a3b`` and experts ``16e``.
        revisions: Dates such as ``2507``, and ``v0.3`` behind a size.
    """

    words: str
    versions: frozenset[str]
    sizes: frozenset[str]
    active: frozenset[str]
    revisions: frozenset[str]


def format_named(text: str) -> tuple[str, str]:
    """Find how the name of an upload says that its weights are held.

    GGUF's mixtures of widths are none of the formats that are known here.

    ``text``: as it was typed: a name, a hub id, a folder. Returns the format, and the words of the
    name; both empty where it says nothing.
    """
    name = re.sub(r"[^a-z0-9]+", " ", split_publisher(text)[1].lower())
    for pattern, weights_format in _FORMATS:
        if (found := re.search(rf"\b(?:{pattern})\b", name)) and "gguf" not in name:
            return weights_format, found[0]
    return "", ""


def read_count(size: str) -> float:
    """Read ``8b`` or ``8x7b`` as parameters; experts share what is no expert, which is left out."""
    found = re.fullmatch(r"(?:(\d+)x)?(\d+(?:\.\d+)?)([mbt])", size)
    return int(found[1] or 1) * float(found[2]) * COUNTS[found[3]] if found else 0.0


def split_publisher(text: str) -> tuple[str, str]:
    """Split a name into who publishes it, lower-case and maybe empty, and the rest."""
    folded = _DASHES.sub("-", unicodedata.normalize("NFKC", text)).strip()
    folded = HUB.sub("", folded, count=1).strip("/")
    organisation, _, name = folded.rpartition("/")
    return organisation.lower(), name


def spaced(name: str) -> str:
    """Write a name as its tokens, lower-case, blanks between."""
    text = _POINT_AS_UNDERSCORE.sub(r"\1.\2", name.lower())
    text = re.sub(r"[^a-z0-9.]+|(?<!\d)\.|\.(?!\d)", " ", _POINT_AS_P.sub(r"\1.\2", text))
    return _JOINED.sub(r"\1 ", _QUANTIZED.sub(" ", text))


def taken_apart(name: str) -> Parts:
    """Take the name of a model apart, without its publisher."""
    words, versions, sizes, active, revisions = [], [], [], [], []
    for token in spaced(name).split():
        if token in DROPPED:
            continue
        if _WORD.fullmatch(token):
            words.append(token)
        elif _SIZE.fullmatch(token):
            sizes.append(token)
        elif _ACTIVE.fullmatch(token):
            active.append(token)
        elif _DATE.fullmatch(token) or (sizes and REVISION.fullmatch(token)):
            revisions.append(token)
        else:
            versions.append(token.removesuffix(".0") if _VERSION.fullmatch(token) else token)
    kinds = (frozenset(each) for each in (versions, sizes, active, revisions))
    return Parts("".join(words), *kinds)


def points_for_dashes(name: str) -> str:
    """Read ``llama3-1-8b`` as ``llama3.1-8b``."""
    return re.sub(r"(?<![\d.])(\d)[-_ ](\d)(?![\d.a-z])", r"\1.\2", name.lower())


def family_of(known: str) -> str:
    """Return the letters that the registry's name of a model begins with."""
    found = re.match(r"[a-z]+", known)
    return found[0] if found else known
