"""What was read off models that were built: the layout of any architecture, kept on this machine.

An architecture that no file here describes has its parameters listed when a profile of it is traced
(``build.layout``). Reads files, and no torch.
"""

import re
from typing import Any

import msgspec

from brimful.files.remembered import once_for_each
from brimful.files.traced import digest, keep_traced, read_traced
from brimful.models.layout import Layout, Shape
from brimful.models.spec import ModelSpec


class BuiltModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a model turned out to be when it was built.

    Attributes:
        layout: Its parameters.
        windows: How far back tokens see, or how many they choose to see, shortest first; of blocks
            without a window nothing.
        kinds: The number of every block's kind, in order of appearance: blocks of one run the same
            operations. Of a body that is one unit, and no row of blocks, none.
        buffers: Bytes of every tensor that the model holds beside its parameters.
        narrow_buffers: The same where its weights are held in 16 bits, which some buffers are then
            too; empty: it is the same.
        loops: Whether other operations run with every length of a sequence, as where a recurrence
            is a loop, or of sizes that are no products of it: then it is traced at a job's own
            length.
        by_token: Whether such a loop is over single tokens, so that few of them tell it.
        packaged: The last two where layers run what packages have for them.
        idle: Shapes of parameters that no text goes through, as of what reads images: they are in
            no layout, never train and are whole on every device.
        parts: Whether several devices can part its experts: each block's are one grouped product.
        again: Whether its class recomputes anything of it.
        spec: Its dimensions, as transformers reads its configuration; None: it was built by a
            version that did not keep them.
    """

    layout: Layout
    windows: tuple[int, ...]
    kinds: tuple[int, ...]
    buffers: tuple[int, ...]
    narrow_buffers: tuple[int, ...] = ()
    loops: bool = False
    by_token: bool = False
    packaged: tuple[bool, bool] = (False, False)
    idle: tuple[Shape, ...] = ()
    parts: bool = True
    again: bool = True
    spec: ModelSpec | None = None


class CacheLayer(msgspec.Struct, frozen=True):
    """What one block keeps of a token while a model writes.

    Attributes:
        key_width: Numbers of its key, all heads together.
        value_width: Numbers of its value.
        window: Tokens that it keeps at most; None: all.
        num_heads: That share these; 1 where they are one latent of all heads.
        state: Numbers that it keeps of a sequence, however long, in the type that is computed in.
        wide_state: The same in fp32.
    """

    key_width: int
    value_width: int
    window: int | None
    num_heads: int = 1
    state: int = 0
    wide_state: int = 0


class Cached(msgspec.Struct, frozen=True):
    """What a model keeps of a token while it writes.

    Attributes:
        blocks: Of every block that keeps something.
        why_not: Why nobody knows; empty: it is known.
    """

    blocks: tuple[CacheLayer, ...]
    why_not: str = ""


_TYPE = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)
_known: dict[str, BuiltModel | None] = {}


@once_for_each
def model_key(spec: ModelSpec) -> str:
    """Name the file of a model: its architecture and its configuration decide it."""
    return _key(spec.model_type, spec.hf_config)


def is_built(model_type: str, hf_config: dict[str, Any]) -> bool:
    """Whether a model was built here before, by what its configuration file says."""
    return read_traced(_key(model_type, hf_config), BuiltModel) is not None


def known_spec(name: str, model_type: str, hf_config: dict[str, Any]) -> ModelSpec | None:
    """Return the dimensions of a model that was built before, without asking transformers."""
    built = read_traced(_key(model_type, hf_config), BuiltModel)
    if built is None or built.spec is None:
        return None
    return msgspec.structs.replace(built.spec, name=name, hf_config=hf_config)


def _key(model_type: str, hf_config: dict[str, Any]) -> str:
    """Name a file; a type is anybody's text, and only what is a name stands in it."""
    named = model_type if _TYPE.fullmatch(model_type) else "other"
    return f"model-{named}-{digest(model_type, hf_config)}"


def as_run(built: BuiltModel, *, packaged: bool) -> BuiltModel:
    """Return what a model is where its layers run what packages have for them, or its own code."""
    if not packaged:
        return built
    loops, by_token = built.packaged
    return msgspec.structs.replace(built, loops=loops, by_token=by_token)


def looping(built: BuiltModel, *, packaged: bool, by_token: bool) -> BuiltModel:
    """Return a model that turned out to loop over tokens, where its layers run so."""
    if packaged:
        return msgspec.structs.replace(built, packaged=(True, by_token))
    return msgspec.structs.replace(built, loops=True, by_token=by_token)


def find_built(spec: ModelSpec) -> BuiltModel | None:
    """Return what was read off a model here before; None where it was not."""
    key = model_key(spec)
    if key not in _known:
        _known[key] = read_traced(key, BuiltModel)
    return _known[key]


def keep_built(spec: ModelSpec, built: BuiltModel) -> None:
    """Keep what was read off a model, for this process and for others."""
    key = model_key(spec)
    _known[key] = built
    keep_traced(key, built)


def is_one_unit(spec: ModelSpec) -> bool:
    """Whether a model was built here before and its body is no row of blocks, but one unit."""
    built = find_built(spec)
    return built is not None and not built.kinds


def num_windows_within(built: BuiltModel, seq_len: int) -> int:
    """Count the windows that are shorter than a sequence: with each other operations run."""
    return sum(window < seq_len for window in built.windows)


_cached: dict[str, Cached | None] = {}


def find_cached(spec: ModelSpec) -> Cached | None:
    """Return what was read off a model's cache before; None where it was not."""
    key = _cached_key(spec)
    if key not in _cached:
        _cached[key] = read_traced(key, Cached)
    return _cached[key]


def keep_cached(spec: ModelSpec, cached: Cached) -> None:
    """Keep what was read off a model's cache, for this process and for others."""
    key = _cached_key(spec)
    _cached[key] = cached
    keep_traced(key, cached)


def _cached_key(spec: ModelSpec) -> str:
    return f"cache-{model_key(spec)}"
