"""Text that would be code where it is not escaped, values that hold it everywhere, and judges.

The judges know nothing of how the program escapes: bash runs what was written, parsers of YAML,
Python, HTML and XML read it, and each is asked whether the text came back as data.
"""

import dataclasses
import random
import re
import subprocess
import types
import typing
import unicodedata
from functools import cache
from html.parser import HTMLParser

import msgspec

CANARY = "canary"
FRAGMENTS = (
    f"\ntouch {CANARY}\n", f"\r\ntouch {CANARY}\r\n", f"$(touch {CANARY})", f"`touch {CANARY}`",
    "${HOME}", "$HOME", f"; touch {CANARY};", f"&& touch {CANARY}", f"| touch {CANARY}", "'", '"',
    "\\", "\\\n", f"'; touch {CANARY}; '", f'"; touch {CANARY}; "', "!!", "*", "~", f"> {CANARY}",
    "#SBATCH --wrap=x", "-rf", "--", "=x", "<script>alert(1)</script>", "</script>", "<!--", "-->",
    "]]>", "</title>", "</style>", "<img src=x onerror=alert(1)>", '" onload="alert(1)',
    "&lt;b&gt;", "&", "' onclick='x", "<svg/onload=x>", "</text>", "- a", ": ", "a: b", "&a", "*a",
    "!!python/object/apply:os.system ['x']", "%TAG", "# comment", "{a: b}", "[x, y]", "|", ">",
    "@x", "yes", "null", "1e3", " lead", "trail ", "\ttab", "\x1b[35;5m", "\x1b]0;title\x07",
    "\x9b31m", "\x00", "\x08", "\x7f", "[red]", "[/]", "[link=file:///x]y[/link]", ":smile:",
    "\u2028", "\u2029", "\x85", "\u202egnp", "\u2066x\u2069", "\u200f", "\ud800", "\udce9", "é",
    "名前", "🙂", "{0}", "%s%n", "{{x}}", "$$", "${style}", '"""', "\nimport os", "n" * 300,
)  # fmt: skip
MARK = "\ue000"
"""A character that no text of ours has: a harmless name is as many of them as a text has."""
_STEERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_MARKS = "\u061c\u200e\u200f"


def draws(number, *, seed):
    """Draw texts, each fragment alone first, always the same ones."""
    drawn = random.Random(seed)  # noqa: S311 - texts, no secrets
    alone = list(FRAGMENTS)
    drawn.shuffle(alone)
    while len(alone) < number:
        parts = drawn.choices(FRAGMENTS, k=drawn.randint(2, 4))
        alone.append(drawn.choice(("", "a", " ", "x/")).join(parts))
    return alone[:number]


def is_plain(text):
    """Whether every character shows, by Unicode's own tables."""
    return not any(
        unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"}
        or unicodedata.bidirectional(c) in _STEERING
        or c in _MARKS
        for c in text
    )


def poison(value, text, *, keep=()):
    """Put a text into every field of text of a value, however deep; ``keep`` names exceptions."""
    if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
        hints = _hints(type(value))
        fields = {
            name: _poison_as(hints[name], getattr(value, name), text, keep)
            for name in hints
            if name not in keep and not name.startswith("__")
        }
        replace = (
            msgspec.structs.replace if isinstance(value, msgspec.Struct) else dataclasses.replace
        )
        return replace(value, **fields)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        hints = _hints(type(value))
        return value._replace(**{
            name: _poison_as(hints[name], getattr(value, name), text, keep)
            for name in value._fields
            if name not in keep
        })  # fmt: skip
    if isinstance(value, tuple | list):
        return type(value)(poison(each, text, keep=keep) for each in value)
    return value


@cache
def _hints(kind):
    return typing.get_type_hints(kind)


def _poison_as(hint, value, text, keep):
    kind = typing.get_origin(hint)
    if hint is str and isinstance(value, str):
        return text if value else value
    if kind in {typing.Union, types.UnionType} and isinstance(value, str):
        return text if str in typing.get_args(hint) else value
    if kind in {tuple, list} or (kind and isinstance(value, tuple | list)):
        inner = [each for each in typing.get_args(hint) if each is not Ellipsis]
        if isinstance(value, tuple | list) and inner:
            hints = inner if len(inner) == len(value) else [inner[0]] * len(value)
            pairs = zip(hints, value, strict=True)
            return type(value)(_poison_as(h, each, text, keep) for h, each in pairs)
    return poison(value, text, keep=keep)


class Page(HTMLParser):
    """What a browser would make of a page: tags, attributes, scripts and text."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.tags, self.values, self.texts, self.styles = [], [], [""], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag == "wbr":
            return
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [value or "" for name, value in attrs if name != "class"]
        self.styles += [value or "" for name, value in attrs if name == "class"]
        self.texts.append("")

    def handle_endtag(self, tag):
        self.tags.append(("/", tag))
        self.texts.append("")

    def handle_comment(self, data):
        self.tags.append(("comment", data))

    def handle_decl(self, decl):
        self.tags.append(("declaration", decl))

    def handle_pi(self, data):
        self.tags.append(("instruction", data))

    def handle_data(self, data):
        self.texts[-1] += data


def page_faults(source, harmless, text):
    """List how a page differs from the one with a harmless name in more than that name."""
    page = Page(source)
    if page.tags != harmless.tags:
        return ["other tags or attributes"]
    faults = [f"class {style!r}" for style in page.styles if not re.fullmatch(r"[\w -]*", style)]
    if not is_plain(source.replace("\n", "").replace("\t", "")):
        faults.append("a control character")
    if is_plain(text):
        pairs = zip([*page.values, *page.texts], [*harmless.values, *harmless.texts], strict=True)
        for found, expected in pairs:
            if MARK in expected and not _same(found, expected, text):
                faults.append(f"{found[:200]!r} for {expected[:200]!r}")
    return faults


def _same(found, expected, text):
    if expected.lstrip().startswith("{"):  # a chart's data
        return msgspec.json.decode(found) == _replaced(msgspec.json.decode(expected), text)
    return " ".join(found.split()) == " ".join(expected.replace(MARK * len(text), text).split())


def _replaced(value, text):
    if isinstance(value, str):
        return value.replace(MARK * len(text), text)
    if isinstance(value, list):
        return [_replaced(each, text) for each in value]
    if isinstance(value, dict):
        return {key: _replaced(each, text) for key, each in value.items()}
    return value


_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def screen_faults(screen, harmless):
    """List what steers a terminal in what was printed, other than the styles of a harmless name."""
    styles = set(_STYLE.findall(screen)) - set(_STYLE.findall(harmless))
    faults = [f"style {style!r}" for style in styles]
    if not is_plain(_STYLE.sub("", screen).replace("\n", "")):
        faults.append("a control character")
    return faults


_STUBS = """
record() { printf '%s\\0' "$@"; }
torchrun() { record torchrun "$@"; }
srun() { record srun "$@"; }
brimful() { record brimful "$@"; }
scontrol() { echo node0; }
export SLURM_JOB_NODELIST=node0 SLURM_JOB_NUM_NODES=2 SLURM_JOB_ID=7
"""


def run_in_bash(scripts, folder):
    """Run scripts, with stubs for what they start, and return the words that each handed over.

    One process runs all of them. None may say a word, nor leave the canary.
    """
    for number, script in enumerate(scripts):
        (folder / f"{number}.sh").write_text(script)
    together = "\n".join(scripts)
    (folder / "all.sh").write_text(together)
    lines = [f"( source ./{n}.sh ) > {n}.out 2> {n}.err < /dev/null" for n in range(len(scripts))]
    (folder / "driver.sh").write_text("\n".join([_STUBS, *lines]))
    for argv in (["bash", "-n", "all.sh"], ["bash", "driver.sh"]):
        done = subprocess.run(argv, cwd=folder, capture_output=True, check=False)
        assert not done.stderr, done.stderr[:500]
    assert not (folder / CANARY).exists(), "what was given as text was run"
    said = [(folder / f"{n}.err").read_bytes() for n in range(len(scripts))]
    assert not any(said), next(filter(None, said))[:500]
    outs = [(folder / f"{n}.out").read_bytes() for n in range(len(scripts))]
    return [out.removesuffix(b"\0").split(b"\0") for out in outs]
