"""What turns images and sounds into tensors for a model of the hub that is not on this machine.

transformers' own classes do it, with their own defaults. What a model's configuration decides, such
as the size of a patch or how many tokens an image takes, is taken from there, and the words that
stand for images in a text from the class of the processor and the rows from the configuration.
"""

import functools
import importlib.util
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_FILE = "preprocessor_config.json"
_WHOLE_FILE, _VIDEO_FILE = "processor_config.json", "video_preprocessor_config.json"
_SEEING, _HEARING = "image_processor_type", "feature_extractor_type"
_PARTS = ("vision_config", "perceiver_config", "audio_config", "text_config")
"""Where a configuration keeps what its own level does not say."""
_ELSEWHERE: dict[str, tuple[str, ...]] = {
    "merge_size": ("spatial_merge_size",),
    "max_image_tiles": ("max_num_tiles",),
    "feature_size": ("num_mel_bins",),
    "image_seq_length": (
        "mm_tokens_per_image", "vision_soft_tokens_per_image", "resampler_n_latents",
    ),
    "audio_seq_length": ("audio_soft_tokens_per_image",),
}  # fmt: skip
"""What configurations call a setting of a processor, besides its own name."""
_PER_IMAGE = ("image_seq_length", "image_seq_len", "num_image_tokens")
"""How processors call the number of tokens that an image takes."""
_IMAGE, _ADDITIONAL = "image_token", "num_additional_image_tokens"
_WITH_ADDITIONAL = frozenset({"clip_vision_model"})
"""Towers that see one token besides an image's patches."""
_LITERAL = re.compile(
    r"\b(\w+_(?:token|tag))\s*(?::[^=\n]+)?=\s*(?:AddedToken\(|getattr\(\s*tokenizer,\s*\"\w+\",)?"
    r"\s*\(?\s*\"(<[^\"\s]+>|\[[A-Z_]+\])\""
)
"""A word of a processor, where its class names it: ``image_token = "<image>"``."""
_ASKED = re.compile(r"\btokenizer(?:\.|, \")(?!add_)(\w+_token)\b")
_SAME = re.compile(r"self\.(\w+_token)\s*=\s*tokenizer\.(\w+_token)\b")
"""A word that a processor takes from its tokenizer, maybe under another name."""
_PLAIN = frozenset(
    f"{name}_token" for name in ("bos", "eos", "unk", "pad", "cls", "sep", "mask", "python")
)
_AROUND = {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"}
_PUBLISHED: dict[str, dict[str, str]] = {
    "gemma3": {
        "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    },
    "gemma3n": {
        "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>", "boa_token": "<start_of_audio>",
        "eoa_token": "<end_of_audio>", "audio_token": "<audio_soft_token>",
    },
    "qwen2_vl": _AROUND,
    "qwen2_5_vl": _AROUND,
    "internvl": {
        "start_image_token": "<img>", "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
    },
}  # fmt: skip
"""Words that stand in no class, recalled, as programs ask for some of them by name."""


class Words(NamedTuple):
    """Special words of a tokenizer that a processor asks for.

    Attributes:
        named: By what the processor calls them.
        rows: By the words; none where a configuration names none.
        places: What a text has where an image, a video or a sound is; empty: it has none.
    """

    named: dict[str, str]
    rows: dict[str, int | None]
    places: dict[str, str]


class _Kind(NamedTuple):
    """Names of transformers' classes for a kind of model; empty: it has none."""

    whole: str
    seeing: str
    hearing: str
    watches: bool


def _tables() -> tuple[Mapping[str, Any], ...]:
    from transformers.models.auto import (
        feature_extraction_auto,
        image_processing_auto,
        processing_auto,
        video_processing_auto,
    )

    return (
        processing_auto.PROCESSOR_MAPPING_NAMES,
        image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES,
        feature_extraction_auto.FEATURE_EXTRACTOR_MAPPING_NAMES,
        video_processing_auto.VIDEO_PROCESSOR_MAPPING_NAMES,
    )


def _kind_of(model_type: str) -> _Kind:
    """Look up classes; one that only another kind with the same processor has is taken from it."""
    whole, seeing, hearing, watching = _tables()
    name = whole.get(model_type, "")
    alike = [model_type, *(kind for kind, other in whole.items() if name and other == name)]
    found = next((seeing[kind] for kind in alike if seeing.get(kind)), None)
    names = list(found.values()) if isinstance(found, Mapping) else [found]
    image = next((str(each) for each in names if each), "")
    sound = next((str(hearing[kind]) for kind in alike if hearing.get(kind)), "")
    return _Kind(name, image.removesuffix("Pil"), sound, any(kind in watching for kind in alike))


def _class_of(name: str) -> Any:
    """Return a class of transformers; None: it needs what is not installed here."""
    import transformers

    found = getattr(transformers, name, None) if name else None
    return found if inspect.isclass(found) and not getattr(found, "is_dummy", False) else None


def _source_of(model_type: str) -> str:
    """Return the text of the class of processors of a kind of model."""
    name = _kind_of(model_type).whole
    whole = _class_of(name) if name else None
    if whole is None:
        return ""
    own = (each for each in whole.__mro__ if ".models." in each.__module__)
    return "\n".join(map(inspect.getsource, own))


@functools.cache
def _called(model_type: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the words of a kind's processor by its names, and by which others it calls them."""
    source = _source_of(model_type)
    words = {name: word for name, word in reversed(_LITERAL.findall(source)) if name not in _PLAIN}
    same = {name: asked for name, asked in _SAME.findall(source) if asked not in _PLAIN}
    for asked in {*_ASKED.findall(source)} - _PLAIN:
        words.setdefault(asked, f"<{asked.removesuffix('_token')}>")
    return {**words, **_PUBLISHED.get(model_type, {})}, same


def words_of(built: Any) -> Words:
    """Return the special words of a model's processor, with their rows as it is configured.

    ``built``: its configuration, as the library builds it.
    """
    named, same = _called(built.model_type)
    also = {asked: name for name, asked in same.items()}
    # Where patches have a word of their own, it is the one that a model looks for.
    patch = next((name for name in named if name.endswith("patch_token")), "")
    also[patch] = _IMAGE
    rows: dict[str, int | None] = {}
    for name, word in named.items():
        asked = also.get(name, "") if patch and name == _IMAGE else name
        found = [_row(built, each) for each in (asked, also.get(name, "")) if each]
        row = next((each for each in found if each is not None), None)
        if rows.get(word) is None:
            rows[word] = row
    start, end = (named.get(f"vision_{side}_token", "") for side in ("start", "end"))
    places = {}
    for kind in ("image", "video", "audio"):
        name = f"{kind}_token"
        word = named.get(same.get(name, name), "")
        places[kind] = f"{start}{word}{end}" if word and kind != "audio" else word
    return Words(named, rows, places)


def _row(built: Any, name: str) -> int | None:
    found = (getattr(built, f"{name}_{kind}", None) for kind in ("id", "index"))
    return next((each for each in found if isinstance(each, int)), None)


def write_processor(folder: Path, built: Any, published: Mapping[str, Any]) -> bool:
    """Write what a model's processor is made by, beside its configuration.

    Returns whether its class's own settings are among it. ``built``: the configuration, as the
    library builds it. ``published``: settings that it is uploaded with, all of them where they name
    a class.
    """
    kind = _kind_of(built.model_type)
    name, key = (kind.seeing, _SEEING) if kind.seeing else (kind.hearing, _HEARING)
    if {_SEEING, _HEARING} & {*published} or not name:
        if published:
            (folder / _FILE).write_text(json.dumps(published), "utf-8")
        return False
    settings = {key: name, **_settings(name, built), **published}
    whole = _class_of(kind.whole)
    if whole is not None:
        settings["processor_class"] = kind.whole
        if "image_processor.image_seq_length" in _source_of(built.model_type):
            settings["image_seq_length"] = _per_image(built)
        text = json.dumps({"processor_class": kind.whole, **_of_whole(whole, built)})
        (folder / _WHOLE_FILE).write_text(text, "utf-8")
    (folder / _FILE).write_text(json.dumps(settings), "utf-8")
    if kind.watches:
        both = ("patch_size", "temporal_patch_size", "merge_size")
        text = json.dumps({name: settings[name] for name in both if name in settings})
        (folder / _VIDEO_FILE).write_text(text, "utf-8")
    return True


def _defaults(name: str) -> dict[str, Any]:
    """Return what a class of processors of images or sounds fills in."""
    found = _class_of(f"{name}Pil") or _class_of(name)
    if found is None:
        return {}
    signed = inspect.signature(found.__init__).parameters.values()
    given = {each.name: each.default for each in signed if each.default is not each.empty}
    own = [vars(each) for each in reversed(found.__mro__) if ".models." in each.__module__]
    return {key: value for each in (given, *own) for key, value in each.items()}


def _settings(name: str, built: Any) -> dict[str, Any]:
    """Return what a model's configuration decides of its processor of images or sounds."""
    found: dict[str, Any] = {}
    defaults = _defaults(name)
    for key, default in defaults.items():
        is_number = isinstance(default, int | float) and not isinstance(default, bool)
        taken = None
        if key == "patch_size" or is_number or key == "image_grid_pinpoints":
            taken = _looked_up(built, key)
        if taken is None or (key == "feature_size" and default == 1):  # of waves, not of spectra
            continue
        found[key] = dict.fromkeys(default, taken) if isinstance(default, dict) else taken
    seen = _looked_up(built, "image_size")
    if seen is None:
        return found
    widest = defaults.get("max_image_size") or {}
    for key in ("size", "crop_size", "max_image_size"):
        sides = defaults.get(key)
        if not isinstance(sides, Mapping) or len({*sides} & {"shortest_edge", "longest_edge"}) > 1:
            continue
        num = {side: value // widest.get(side, value) for side, value in sides.items() if value}
        found[key] = {side: seen * times for side, times in num.items()}
    return found


def _of_whole(whole: Any, built: Any) -> dict[str, Any]:
    """Return what a configuration decides of the processor that holds the others."""
    found: dict[str, Any] = {}
    for name in inspect.signature(whole.__init__).parameters:
        if name in _PER_IMAGE:
            taken = _per_image(built)
        elif name == _ADDITIONAL:
            tower = getattr(getattr(built, "vision_config", None), "model_type", "")
            taken = int(tower in _WITH_ADDITIONAL)
        elif name.endswith(("_token", "_template")):
            continue
        else:
            taken = _looked_up(built, name)
        if taken is not None:
            found[name] = taken
    return found


def _looked_up(built: Any, name: str) -> Any:
    """Return what a configuration or a part of it says of a setting; None: nothing."""
    for part in (built, *(getattr(built, each, None) for each in _PARTS)):
        for key in (name, *_ELSEWHERE.get(name, ())):
            value = getattr(part, key, None)
            if name != "image_grid_pinpoints" and isinstance(value, list | tuple) and value:
                value = value[0]
            if value is not None and not isinstance(value, Mapping):
                return value
    return None


def _per_image(built: Any) -> int | None:
    """Return how many tokens an image takes; None: a configuration does not say."""
    seen, patch = _looked_up(built, "image_size"), _looked_up(built, "patch_size")
    said = _looked_up(built, "image_seq_length")
    if said is None and seen and patch:
        said = (seen // patch) ** 2 // (getattr(built, "scale_factor", None) or 1) ** 2
    return None if said is None else int(said)


def without_torchvision(
    is_own: Callable[[Any], bool], module: Any
) -> Iterator[tuple[Any, str, Any]]:
    """Yield what is changed in a module so that images need no torchvision, which videos do.

    Processors of both ask for their processor of videos when they are made. ``is_own``: whether a
    model is stood in for.
    """
    if importlib.util.find_spec("torchvision") is not None:
        return
    if module.__name__ == "transformers.models.auto.video_processing_auto":
        kind = module.AutoVideoProcessor
        load = kind.from_pretrained

        @functools.wraps(load)
        def from_pretrained(name: Any, *args: Any, **kwargs: Any) -> Any:
            return _no_videos()() if is_own(name) else load(name, *args, **kwargs)

        yield kind, "from_pretrained", staticmethod(from_pretrained)
    if module.__name__ == "transformers.processing_utils":
        kind, name = module.ProcessorMixin, "check_argument_for_proper_class"
        check = vars(kind)[name]

        @functools.wraps(check)
        def checked(self: Any, argument_name: str, argument: Any) -> Any:
            if type(argument) is _no_videos():
                return type(argument)
            return check(self, argument_name, argument)

        yield kind, name, checked


@functools.cache
def _no_videos() -> Any:
    """Return a class of processors of videos that only says what it lacks."""
    from transformers.video_processing_utils import BaseVideoProcessor

    class NoVideos(BaseVideoProcessor):  # type: ignore[misc]
        def __call__(self, *_: Any, **__: Any) -> Any:
            raise ImportError("videos are made ready by torchvision, which is not installed here")

    return NoVideos
