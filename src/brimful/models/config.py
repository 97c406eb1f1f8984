"""Finding a model: a name, a folder, a config.json, a hub id, a factory. Owns every check of it."""

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from brimful.errors import FileFormatError, InputError, ModelConfigError, UnsupportedError
from brimful.files.remembered import once_for_each
from brimful.files.writing import is_there, read_whole
from brimful.models import generic, names
from brimful.models.architectures import ARCHITECTURES, MIXTURES, named_with, type_of_class
from brimful.models.by_name import find_named
from brimful.models.described import described
from brimful.models.diffusion import Diffusion, refusal
from brimful.models.dimensions import check_dimensions, check_routing
from brimful.models.experts import Experts, num_active_parameters
from brimful.models.fields import check_experts, check_fields
from brimful.models.hub import fetch_file, is_hub_id
from brimful.models.language_parts import says_it_sees, sees
from brimful.models.layout import Layout, Shape, count_parameters
from brimful.models.masked import with_masked_head
from brimful.models.mixtures import built_experts, known_experts
from brimful.models.module import is_factory, read_factory
from brimful.models.own_task import check_masked, is_encoder, is_encoder_decoder, own_task
from brimful.models.registry import registry
from brimful.models.score import has_score, scored_layout, with_score
from brimful.models.spec import MODULE, ModelSpec, ParameterCount
from brimful.models.traced import BuiltModel, find_built, is_built, known_spec
from brimful.process.quick_imports import quick_imports
from brimful.text.escaping import check_line
from brimful.values.job import Task

SEQ2SEQ_TYPES = named_with("task", "seq2seq")
_REASON_LENGTH = 160


def load_model(name_or_path: str) -> ModelSpec:
    """Resolve what the user called the model.

    Args:
        name_or_path: A registry name in any spelling (``names.find``), a folder that holds a
            config.json, such a file, a hub id ``org/name``, or a factory
            ``package.module:function``, which is not imported yet.

    Returns:
        The dimensions of the model. Known models are named as the registry names them.

    Raises:
        UnknownNameError: No such model and no such file, or several models.
        ModelConfigError: The file is broken, or its architecture is not known.
        InputError: The hub holds the file and does not hand it out.
        UnsupportedError: It is known and no language model.
    """
    if (config := described(name_or_path)) is not None:
        return read_config(name_or_path, config)
    source = _source_of(name_or_path)
    if isinstance(source, Path):
        return read_config(name_or_path, _read_json(source))
    if source in registry():
        entry = registry()[source]
        return read_config(source, {"model_type": entry["model_type"], **entry["config"]})
    return read_factory(source)


def _source_of(name_or_path: str) -> str | Path:
    """Find what a name means: the registry's name, a factory's, or the file of a configuration."""
    if name_or_path in registry():
        return name_or_path
    if is_factory(name_or_path) and not is_there(name_or_path):
        return name_or_path
    taken = find_named(name_or_path)
    if isinstance(taken, Diffusion):
        raise UnsupportedError(refusal(taken))
    if taken and taken.is_own:
        return taken.name
    try:
        path = _find_config(name_or_path)
    except InputError as error:
        # What is uploaded under a known name by somebody unknown, and cannot be read.
        if taken is None:
            raise _with_nearest(error, name_or_path) from error
        return taken.name
    if path is not None:
        return path
    if taken is not None:
        return taken.name
    more = "give a name (brimful models lists them), a folder, a config.json or a hub id org/name"
    raise _with_nearest(names.unknown_model(name_or_path, more=more), name_or_path)


def _with_nearest(error: InputError, name_or_path: str) -> InputError:
    """Name in an error the known model that an unknown one is but for a letter or a word."""
    near, what, on_top = names.without_qualifiers(name_or_path)
    if not near:
        near, words, on_top = names.misspelt(name_or_path)
        if near:
            words = f"{words}: did you mean that? else: {error}"
            return type(error)(words, nearest={"model": near}, on_top=on_top)
    if not near:
        near, what = names.nearest_by_name(name_or_path, frozenset(ARCHITECTURES))
        on_top = names.IMAGES if sees(name_or_path) else on_top
    if not near:
        return error
    return type(error)(
        f"{error}; {what}",
        nearest={"model": near},
        on_top=on_top,
        unlike=names.unlike(name_or_path, near),
    )


def _find_config(name_or_path: str) -> Path | None:
    """Find the config.json that a path names; None where it does not look like a path."""
    path = Path(name_or_path)
    try:
        if name_or_path and path.is_dir():
            path = path / "config.json"
        if path.is_file():
            return path
        is_there = name_or_path and path.exists()
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or error
        raise ModelConfigError(f"{name_or_path!r} cannot be a path ({reason}); check it") from error
    if is_there:
        raise ModelConfigError(f"{path} is no file; give a config.json or a folder that holds one")
    if is_hub_id(name_or_path):
        return fetch_file(name_or_path, "config.json")
    if path.suffix == ".json" or len(path.parts) > 1:
        raise ModelConfigError(f"no config.json at {path}; give a folder that holds one, or a name")
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(read_whole(path).decode("utf-8"))
    except json.JSONDecodeError as error:
        raise ModelConfigError(
            f"{path} is not JSON (line {error.lineno}: {error.msg}); mend it or download it again"
        ) from error
    except UnicodeDecodeError as error:
        raise ModelConfigError(
            f"{path} is not UTF-8 text (byte {error.start}); give a config.json"
        ) from error
    except OSError as error:
        raise ModelConfigError(f"{path} cannot be read ({error.strerror}); check it") from error
    except FileFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(
            f"{path} is not a config.json (a number of thousands of digits, or thousands of "
            f"brackets); download it again"
        ) from error
    if not isinstance(config, dict):
        raise ModelConfigError(
            f"{path} holds a {type(config).__name__}, not a JSON object; give a model's config.json"
        )
    return config


def read_config(name: str, config: dict[str, Any]) -> ModelSpec:
    """Turn raw configuration fields into a checked ``ModelSpec``.

    Raises InputError: the name is no line.
    """
    check_line(name, what="the model's name")
    fields = {field: value for field, value in config.items() if field != "model_type"}
    known = _built_before(name, config.get("model_type"), fields)
    model_type = known.model_type if known else _model_type(name, config)
    check_fields(name, config)
    if model_type == MODULE:
        return read_factory(name)
    if model_type not in ARCHITECTURES:
        spec = known or generic.read(name, model_type, fields)
    else:
        record = ARCHITECTURES[model_type]
        missing = [field for field in record.required if field not in config]
        if missing:
            raise ModelConfigError(f"{name} lacks {', '.join(missing)}; add it to its config.json")
        if model_type in MIXTURES:
            check_experts(name, fields)
        spec = record.read(name, fields)
    if _is_scored(model_type, fields):
        spec = msgspec.structs.replace(spec, tied_embeddings=False)
    check_dimensions(spec)
    if model_type in MIXTURES:
        check_routing(name, experts_of(spec))
    return spec


def _built_before(name: str, model_type: object, fields: dict[str, Any]) -> ModelSpec | None:
    """Return a model that no file here describes and that was built before, as it was read then."""
    if not isinstance(model_type, str) or model_type in {*ARCHITECTURES, MODULE}:
        return None
    return known_spec(name, model_type, fields)


def _model_type(name: str, config: dict[str, Any]) -> str:
    if "model_type" not in config:
        raise ModelConfigError(f"{name} lacks model_type; give the config.json of a model")
    model_type = config["model_type"]
    ours = isinstance(model_type, str) and model_type in {*ARCHITECTURES, MODULE}
    known = isinstance(model_type, str) and generic.is_known(model_type)
    if ours or (known and model_type not in _UNBUILT):
        return str(model_type)
    if not known and (of_class := type_of_class(config)):
        return of_class
    own_name = name if known or says_it_sees(config) else ""
    by_name, what, on_top = names.without_qualifiers(own_name)
    near = _language_part(config, by_name)
    words = f"its language part has the sizes of {near}"
    if not near and on_top:
        near, words = by_name, what
    if not near and known:
        return str(model_type)
    if not near:
        raise generic.unknown_type(name, model_type, tuple(sorted(ARCHITECTURES)))
    kind = f"{name} is of type {model_type}, which reads images or sounds and is not planned"
    raise ModelConfigError(f"{kind}; {words}", nearest={"model": near}, on_top=names.IMAGES)


_UNBUILT = frozenset({"gemma3n", "mllama"})
"""Types of models that see and hear whose blocks are not where those of texts alone are."""
_FEW_ROWS = 1000
"""Of a vocabulary, by which models that are alike differ: tokens for images, rounding."""
_USUAL_VOCABULARY = 32_000
"""Of a Llama's configuration that leaves it out."""
_LANGUAGE_SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")


def _language_part(config: dict[str, Any], by_name: str) -> str:
    """Return the known model of the sizes of a model's language part; empty: there is none.

    Of several that are alike it is the one that the model's name says, if any does.

    What other libraries' classes make of ``text_config`` they do not say in the file: what it
    leaves out is the same in both.
    """
    part = config.get("text_config", config.get("llm_config"))
    if not isinstance(part, dict) or not {"vision_config", "audio_config"} & {*config}:
        return ""
    sizes = {field: _each(part[field]) for field in _LANGUAGE_SIZES if field in part}
    if not {"hidden_size", "num_hidden_layers"} <= {*sizes}:
        return ""
    kind = part.get("model_type")
    alike = [
        known
        for known, entry in registry().items()
        if all(entry["config"].get(field) == size for field, size in sizes.items())
    ]

    def unlikeness(known: str) -> tuple[bool, bool, int, bool, int]:
        entry = registry()[known]
        rows = abs(entry["config"].get("vocab_size", 0) - part.get("vocab_size", _USUAL_VOCABULARY))
        is_other = entry["model_type"] != kind
        is_tune = not names.is_named_as_its_type(known, entry["model_type"])
        return known != by_name, is_other, rows // _FEW_ROWS, is_tune, rows

    return min(alike, key=unlikeness, default="")


def _each(size: object) -> object:
    """Return the one size of all blocks, where a list says it of each."""
    is_one = isinstance(size, list) and len(size) > 0 and size.count(size[0]) == len(size)
    return size[0] if isinstance(size, list) and is_one else size


def check_model(spec: ModelSpec) -> ModelSpec:
    """Return a model as it is, or say where it is not what its own configuration describes."""
    described = read_config(spec.name, {**spec.hf_config, "model_type": spec.model_type})
    for field in spec.__struct_fields__:
        given, expected = getattr(spec, field), getattr(described, field)
        if given != expected and field != "hf_config":
            raise ModelConfigError(
                f"model.{field}={given!r} is not what model.hf_config describes ({expected!r}); "
                f"change both, or plan again"
            )
    return spec


def default_task(spec: ModelSpec) -> Task:
    """Return the task that a model is trained on where nobody says which."""
    if spec.model_type == MODULE:
        return "module"
    if _is_scored(spec.model_type, spec.hf_config):
        return "sequence-classification"
    return own_task(spec.model_type)


def _is_scored(model_type: str, config: dict[str, Any]) -> bool:
    """Whether a decoder is one of those that classify."""
    return has_score(config) and own_task(model_type) == "causal-lm"


def for_task(spec: ModelSpec, task: Task) -> ModelSpec:
    """Return a model as it is built for a task: a decoder that classifies has another head."""
    if is_encoder_decoder(spec.model_type) and task not in {"seq2seq", "sequence-classification"}:
        raise UnsupportedError(
            f"task={task} would leave out the encoder of {spec.name}; use task=seq2seq",
            nearest={"task": "seq2seq"},
        )
    if task == "masked-lm":
        check_masked(spec)
    if spec.model_type == MODULE or is_encoder_decoder(spec.model_type):
        return spec
    if is_encoder(spec.model_type):
        config = with_masked_head(spec.hf_config, masked=task == "masked-lm")
    else:
        config = with_score(spec.hf_config, scored=task == "sequence-classification")
    if config is spec.hf_config:
        return spec
    return read_config(spec.name, {**config, "model_type": spec.model_type})


def has_parameter_count(spec: ModelSpec) -> bool:
    """Whether the parameters of a model are known before it is built."""
    return spec.model_type in ARCHITECTURES


def has_layout(spec: ModelSpec) -> bool:
    """Whether ``layout_of`` lays a model out: it is described, or was built here."""
    return has_parameter_count(spec) or find_built(spec) is not None


def layout_of(spec: ModelSpec) -> Layout:
    """Lay out the parameters of a model, in the order of ``Module.parameters()``.

    Of an architecture that no file here describes they are known once it was built here, for a
    profile (``models.traced``).

    Raises UnsupportedError: its architecture has no layout; its parameters are known when it is
    built.
    """
    return _described(spec) if has_parameter_count(spec) else _built(spec).layout


@once_for_each
def _described(spec: ModelSpec) -> Layout:
    layout = ARCHITECTURES[spec.model_type].layout(spec)
    is_scored = _is_scored(spec.model_type, spec.hf_config)
    return scored_layout(layout, spec) if is_scored else layout


def buffers_of(spec: ModelSpec, *, is_narrow: bool) -> tuple[int, ...]:
    """List the bytes of what a model holds beside its parameters, where that was read off it.

    ``is_narrow``: whether its weights are held in 16 bits. Of the architectures that are described
    here it is a few hundred bytes, and left out.
    """
    built = None if has_parameter_count(spec) or spec.model_type == MODULE else find_built(spec)
    if built is None:
        return ()
    return (is_narrow and built.narrow_buffers) or built.buffers


def idle_shapes(spec: ModelSpec) -> tuple[Shape, ...]:
    """List the shapes of parameters that no text goes through, where that was read off a model."""
    built = None if has_parameter_count(spec) or spec.model_type == MODULE else find_built(spec)
    return () if built is None else built.idle


def experts_of(spec: ModelSpec) -> Experts:
    """Read the experts of a model; ``NO_EXPERTS`` of a dense one.

    Raises UnsupportedError: its architecture has no layout, so that nobody knows whether it has
    any.
    """
    if not has_parameter_count(spec):
        return built_experts(spec, _built(spec).layout)
    return known_experts(spec)


def _built(spec: ModelSpec) -> BuiltModel:
    """Return what was read off a model when a profile of it was traced on this machine."""
    built = None if spec.model_type == MODULE else find_built(spec)
    if built is None:
        raise UnsupportedError(
            f"{spec.name} is of type {spec.model_type}, whose parameters have no formula; "
            f"brimful simulate counts them"
        )
    return built


def parameter_count(spec: ModelSpec) -> ParameterCount:
    """Count the parameters of a model by its layout.

    Raises UnsupportedError: it has none; the parameters are counted when the model is built.
    """
    return count_parameters(layout_of(spec))


def known_count(spec: ModelSpec) -> int | None:
    """Return how many parameters a model has, by its layout or as published; None: unknown."""
    if has_parameter_count(spec):
        return parameter_count(spec).total
    entry = registry().get(spec.name)
    return None if entry is None else int(names.num_parameters(entry))


def exact_count(spec: ModelSpec) -> int | None:
    """Return how many parameters a model has, counted; None: it was published, or is unknown."""
    if spec.model_type == MODULE:
        return None
    if has_parameter_count(spec):
        return parameter_count(spec).total
    built, counted = find_built(spec), registry().get(spec.name, {}).get("num_parameters")
    if built is not None:
        return count_parameters(built.layout).total
    return None if counted is None else int(counted)


class Unread(NamedTuple):
    """A model of the registry that takes ``transformers`` to read, and was never built here."""

    name: str
    model_type: str
    num_parameters: int


def find_unread(name_or_path: str) -> Unread | None:
    """Return what the registry says of a model that takes long to read; None of any other.

    ``name_or_path``: as for ``load_model``; a path or another hub id is no model of the registry.
    """
    name = name_or_path
    if name not in registry():
        taken = find_named(name)
        if not isinstance(taken, names.Taken) or not taken.is_own:
            return None
        name = taken.name
    entry = registry()[name]
    model_type = entry["model_type"]
    is_slow = model_type not in {*ARCHITECTURES, MODULE}
    if not is_slow or is_built(model_type, entry["config"]):
        return None
    return Unread(name, model_type, int(names.num_parameters(entry)))


def active_parameters(spec: ModelSpec) -> int:
    """Count the parameters that one token uses: all of a dense model's.

    What is counted, and why the embedding is, stands in ``num_active_parameters``.

    Raises UnsupportedError: the model has no layout.
    """
    return num_active_parameters(layout_of(spec), experts_of(spec))


def check_buildable(spec: ModelSpec) -> ModelSpec:
    """Return a model as it is, or say why ``transformers`` cannot build it; imports it.

    A module is returned as it is: its factory is not called here.

    Raises ModelConfigError: a field that decides no bytes here is broken, such as
    ``rope_parameters``.
    """
    if spec.model_type == MODULE:
        return spec
    with quick_imports():
        _check_builds(spec)
    return spec


def _check_builds(spec: ModelSpec) -> None:
    try:
        with contextlib.suppress(Exception):  # of some, whose blocks share, one alone is no model
            _build(spec, num_blocks=1)  # shows every fault, without bytes on meta
            return
        _build(spec)
    except Exception as error:  # its checks raise errors of many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        raise ModelConfigError(
            f"transformers cannot build {spec.name} ({reason[:_REASON_LENGTH]}); "
            f"mend that field of its configuration"
        ) from error


def _build(spec: ModelSpec, *, num_blocks: int | None = None) -> None:
    import torch
    from transformers import AutoConfig

    config = AutoConfig.for_model(spec.model_type, **spec.hf_config)
    if num_blocks is not None:
        config.num_hidden_layers = num_blocks
    with torch.device("meta"):
        _auto_class(spec.model_type).from_config(config)


def _auto_class(model_type: str) -> Any:
    """Return the class that builds an architecture for its usual task."""
    import transformers

    if is_encoder_decoder(model_type):
        return transformers.AutoModelForSeq2SeqLM
    if is_encoder(model_type):
        return transformers.AutoModelForSequenceClassification
    return getattr(transformers, generic.auto_class_of(model_type))
