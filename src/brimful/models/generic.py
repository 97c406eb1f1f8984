"""Any other architecture that ``transformers`` builds: its sizes, read by their usual names.

Nothing is counted in closed form here and no profile ships for these: they are traced when they are
first asked for. Imports ``transformers``, and only for them.
"""

import difflib
import inspect
import re
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from brimful.errors import ModelConfigError
from brimful.models.class_source import is_causal_by_itself, lets_attend
from brimful.models.fields import MAX_POSITIONS
from brimful.models.spec import ModelSpec
from brimful.process.library_output import quiet_libraries

_SIZES = {
    "hidden_size": ("hidden_size", "d_model", "n_embd", "dim"),
    "intermediate_size": (
        "intermediate_size",
        "ffn_dim",
        "n_inner",
        "encoder_ffn_dim",
        "ffn_hidden_size",
        "hidden_dim",
        "moe_intermediate_size",
    ),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "encoder_layers"),
    "num_heads": (
        "num_attention_heads",
        "n_head",
        "n_heads",
        "encoder_attention_heads",
        "num_heads",
    ),
    "vocab_size": ("vocab_size", "num_hash_buckets"),
    "max_seq_len": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_sequence_length",
        "seq_length",
        "n_ctx",
    ),
}
_UNKNOWN = {"intermediate_size": 0}
"""What a size is that a configuration does not say under any of these names, and nothing is counted
by: an MLP is as wide as it is when it is built."""
_REASON_LENGTH = 160


_POSITIONS = re.compile(r"max_(\w+_)?positions?(_embeddings)?")
"""What else says how many positions there are, as of one of two stacks: the fewest count."""
_PADDED = re.compile(r"max_position_embeddings,\s*config\.hidden_size,\s*padding_idx")
"""A table of positions in a class that has a row of padding among them."""
_ADDED = "position_biased_input"
"""Whether DeBERTa and its kin have a table of positions; without one only distances count, and the
farthest are alike. Source: ``DebertaV2Embeddings``, and ``build_relative_position`` beside it, of
which an index is clamped."""
_HEADS = re.compile(r"heads?(_|$)")
"""In the name of a field that says something of heads."""
_READERS = ("encoder_layers", "num_encoder_layers", "num_layers")
_WRITERS = ("decoder_layers", "num_decoder_layers")
"""How many blocks read, and how many write, in a model that has both."""
_PARTS = {_READERS: "encoder", _WRITERS: "decoder"}
"""What a configuration calls those of its parts, where it is a pair of them."""
_WRITES = "decoder_input_ids"
"""What a model is given that writes one text after it has read another."""


def known_types() -> frozenset[str]:
    """Name the model types that ``transformers`` predicts tokens or classifies sequences with."""
    quiet_libraries()
    from transformers.models.auto import modeling_auto as auto

    return frozenset(
        {
            *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            *auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
            *auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        }
    )


class Listed(msgspec.Struct, frozen=True):
    """What the mappings of transformers held when this version was made.

    A list of them spares importing it; what is not listed is asked of the one that is installed.

    Attributes:
        made_by: Version of transformers.
        modules: By model type that predicts tokens or classifies sequences: the module of its
            classes, in ``transformers.models``.
        encoders: Those of them whose tokens see the whole text.
        encoder_decoders: Those that write one text after they have read another.
        masked: Those that have a head which tells hidden tokens.
        cut: Those whose every matrix tensor parallelism cuts (``cut_plans``).
    """

    made_by: str
    modules: dict[str, str]
    encoders: frozenset[str]
    encoder_decoders: frozenset[str]
    masked: frozenset[str]
    cut: frozenset[str]


@cache
def listed() -> Listed:
    """Read the list."""
    return msgspec.json.decode(types_file().read_bytes(), type=Listed)


def types_file() -> Path:
    """Return where it lies."""
    return Path(str(resources.files("brimful").joinpath("data", "transformers_types.json")))


def is_known(model_type: str) -> bool:
    """Whether ``transformers`` predicts tokens or classifies sequences with a model type."""
    return model_type in listed().modules or model_type in known_types()


def is_encoder(model_type: str) -> bool:
    """Whether tokens of a model type see the whole text."""
    if model_type in listed().modules:
        return model_type in listed().encoders
    return model_type in encoder_types()


def is_encoder_decoder(model_type: str) -> bool:
    """Whether a model type writes one text after it has read another."""
    if model_type in listed().modules:
        return model_type in listed().encoder_decoders
    return _reads_and_writes(model_type)


def has_masked_head(model_type: str) -> bool:
    """Whether ``transformers`` has a class of a model type that tells hidden tokens."""
    of = listed()
    return model_type in (of.masked if model_type in of.modules else masked_types())


def module_of(model_type: str) -> str:
    """Name the module of ``transformers.models`` that has a model type's classes."""
    found = listed().modules.get(model_type)
    return found or installed_module_of(model_type)


def installed_module_of(model_type: str) -> str:
    """Ask the same of the ``transformers`` that is installed."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    return str(model_type_to_module_name(model_type))


def modeling_file(model_type: str) -> Path | None:
    """Find the module of an architecture's classes, where ``transformers`` is installed."""
    found = find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        return None
    parts = module_of(model_type).split(".")
    folder = Path(found.submodule_search_locations[0], "models", *parts)
    return folder / f"modeling_{parts[-1]}.py"


def masked_types() -> frozenset[str]:
    """Name the model types that have a head which tells hidden tokens."""
    quiet_libraries()
    from transformers.models.auto import modeling_auto as auto

    return frozenset(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)


def encoder_types() -> frozenset[str]:
    """Name the model types whose tokens see the whole text: those with a masked-language head.

    Those that have no head but one that classifies are taken for such too, and those that classify
    and would write, but whose class hides nothing that comes later, as XLNet's.
    """
    quiet_libraries()
    from transformers.models.auto import modeling_auto as auto

    writes = {
        *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    }
    classify = {*auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES}
    return (
        masked_types()
        | (classify - writes)
        | {each for each in classify & writes if _hides_none(each)}
    )


def _hides_none(model_type: str) -> bool:
    """Whether a class attends by itself, and lets each token see those behind it."""
    path = modeling_file(model_type)
    if path is None or not path.is_file() or _reads_and_writes(model_type):
        return False
    source = path.read_text("utf-8")
    return not lets_attend(source) and not is_causal_by_itself(source)


def auto_class_of(model_type: str) -> str:
    """Name the class of ``transformers`` that builds a decoder with its output layer.

    Those that answer to sounds with text stand among the encoder-decoders, and are none.
    """
    from transformers.models.auto import modeling_auto as auto

    writes = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    hears = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    is_other = model_type not in writes and model_type in hears
    return "AutoModelForSeq2SeqLM" if is_other else "AutoModelForCausalLM"


def encoder_decoder_types() -> frozenset[str]:
    """Name the model types that write one text after they have read another."""
    quiet_libraries()
    from transformers.models.auto import modeling_auto as auto

    return frozenset(filter(_reads_and_writes, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES))


def _reads_and_writes(model_type: str) -> bool:
    """Whether a class predicts what is written and is told what was written so far.

    Others that answer to sounds with text stand in the same mapping.
    """
    quiet_libraries()
    import transformers
    from transformers.models.auto import modeling_auto as auto

    named = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    made = None if named is None else getattr(transformers, named, None)
    return made is not None and _WRITES in inspect.signature(made.forward).parameters


def read(name: str, model_type: str, config: dict[str, Any]) -> ModelSpec:
    """Take the dimensions out of a configuration, with the defaults of its own class.

    Raises ModelConfigError: ``transformers`` refuses it, or it lacks a size that all models have.
    """
    whole = _make_whole(name, model_type, config)
    made = whole.get_text_config()
    sizes = {field: _size(name, made, field) for field in _SIZES}
    if _are_after_padding(model_type):
        sizes["max_seq_len"] -= made.pad_token_id + 1
    if is_encoder_decoder(model_type):
        sizes["num_layers"] = sum(_blocks(name, whole, stack) for stack in (_READERS, _WRITERS))
    num_heads = sizes["num_heads"]
    return ModelSpec(
        name=name,
        model_type=model_type,
        num_kv_heads=_value(made, "num_key_value_heads") or num_heads,
        head_dim=_value(made, "head_dim") or sizes["hidden_size"] // num_heads,
        tied_embeddings=bool(getattr(made, "tie_word_embeddings", False)),
        hf_config=config,
        **sizes,
    )


def num_readers(spec: ModelSpec) -> int:
    """Count the blocks of an encoder-decoder that read, by its configuration's own class."""
    whole = _make_whole(spec.name, spec.model_type, spec.hf_config)
    return _blocks(spec.name, whole, _READERS)


@cache
def _are_after_padding(model_type: str) -> bool:
    """Whether a first token stands at the position after the padding token's id, as RoBERTa's."""
    path = modeling_file(model_type)
    return (
        path is not None and path.is_file() and _PADDED.search(path.read_text("utf-8")) is not None
    )


def is_rotary(spec: ModelSpec) -> bool:
    """Whether a model's positions are angles, by its configuration's own class."""
    made = _make(spec.name, spec.model_type, spec.hf_config)
    return bool(_value(made, "rope_parameters")) and "max_position_embeddings" in spec.hf_config


def _make(name: str, model_type: str, config: dict[str, Any]) -> Any:
    """Make a configuration of its own class; of a pair the part that writes."""
    return _make_whole(name, model_type, config).get_text_config()


def _make_whole(name: str, model_type: str, config: dict[str, Any]) -> Any:
    quiet_libraries()
    from transformers import AutoConfig

    try:
        made = AutoConfig.for_model(model_type, **config)
    except Exception as error:  # its checks raise errors of many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        raise ModelConfigError(
            f"transformers cannot read {name} ({reason[:_REASON_LENGTH]}); mend that field"
        ) from error
    return made


def _value(made: Any, field: str) -> Any:
    try:
        return getattr(made, field, None)
    except RuntimeError:  # it differs from block to block, as Gemma 4's heads: the usual block's
        return vars(made).get(field)


def _first(made: Any, fields: tuple[str, ...]) -> int:
    """Return the first size that a configuration has under any of these names; 0: none."""
    values = (_value(made, field) for field in fields)
    return next((value for value in values if type(value) is int and value > 0), 0)


def _blocks(name: str, whole: Any, fields: tuple[str, ...]) -> int:
    """Count the blocks of one of two stacks; each may have a configuration of its own."""
    part: Any = getattr(whole, _PARTS[fields], None)
    if part is not None and hasattr(part, "get_text_config"):
        made, fields = part.get_text_config(), _SIZES["num_layers"]
    else:
        made = whole.get_text_config()
    if found := _first(made, fields):
        return found
    raise ModelConfigError(
        f"{name} is of type {made.model_type} and has no {fields[0]}, so that nobody knows here "
        f"how many of its blocks read and how many write; give another model"
    )


def _size(name: str, made: Any, field: str) -> int:
    """Return a size of a configuration.

    Positions that it does not count have no end: they are distances, or there are none. A model
    without any heads, which does not attend, has one.
    """
    if field == "max_seq_len" and _value(made, _ADDED) is False:
        return MAX_POSITIONS
    if found := _first(made, _SIZES[field]):
        return found
    told = {other: value for other, value in vars(made).items() if type(value) is int}
    if field == "max_seq_len":
        return min(
            (n for other, n in told.items() if _POSITIONS.fullmatch(other)), default=MAX_POSITIONS
        )
    if field == "num_heads" and not any(map(_HEADS.search, told)):
        return 1
    if field in _UNKNOWN:
        return _UNKNOWN[field]
    raise ModelConfigError(
        f"{name} is of type {made.model_type} and has no {_SIZES[field][0]}, so that it is no "
        f"transformer of one kind of block; give another model"
    )


def unknown_type(name: str, model_type: object, ours: tuple[str, ...]) -> ModelConfigError:
    """Build the error for an architecture that neither this version nor ``transformers`` knows."""
    known = [*ours, *known_types()]
    near = difflib.get_close_matches(str(model_type), known, n=1, cutoff=0.75)
    fix = f"did you mean {near[0]}?" if near else "give a model of one of these"
    return ModelConfigError(
        f"{name} has model_type {model_type!r} and this version knows {', '.join(ours)} and "
        f"the decoders and classifiers of transformers; {fix}"
    )
