"""Tracing a profile: small models on the pretend GPU, cut into runs, fitted into formulas.

Six blocks are enough to see every role: the first checkpointed block, one between, the last, and
the same for plain ones. The same program at several shapes gives the same sequence of events with
other sizes; event by event the sizes are fitted (``fit.py``).
"""

import hashlib
from collections.abc import Callable, Sequence
from importlib import resources
from itertools import product
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np

from brimful.cost.profiles import (
    NUM_CHUNKS,
    PROFILE_SCHEMA,
    TRACED_ATTENTIONS,
    TRACED_PRECISIONS,
    TWO_CHUNKS,
    Body,
    Profile,
    Variant,
    dimensions,
    is_written_out,
    variant_key,
)
from brimful.errors import InputError, UnsupportedError
from brimful.job import Job, Precision, plain_job
from brimful.models.config import read_config
from brimful.models.spec import ModelSpec
from brimful.pretend.kernels import Kernels
from brimful.pretend.recording import Recording
from brimful.rungs import WORKSPACES
from brimful.simulate.run import trace
from brimful.simulate.runs import GROUP_SIZE, RunFitter, Tables
from brimful.strategy import Attention, Strategy
from brimful.versions import versions

ARCHITECTURES = ("llama", "llama-tied", "llama-mha", "llama-tied-mha", "gpt2-tied")
_SHAPES = (
    # B, S, kv heads, query heads per kv head, head_dim, hidden, intermediate, vocab, positions
    (3, 640, 2, 3, 32, 264, 328, 1096, 704),
    (5, 1152, 4, 2, 64, 408, 712, 1544, 1288),
    (7, 1280, 3, 5, 96, 504, 904, 2312, 1336),
    (2, 1920, 5, 3, 128, 232, 1208, 3336, 2176),
)
"""Tokens are multiples of 2 and 5 (chunks); sequences of 128 and head widths of 32, to which flash
attention's backward rounds; other widths of 8."""
FITTED_BUFFERS = (
    "gradient times output",
    "contiguous copy of the input",
    "contiguous copy of the gradient",
    "softmax before masked rows are zeroed",
    "mask of minus infinity",
    "softmax_d, fp32 row sums",
    "dq_accum, fp32",
    "dk of every query head",
    "dv of every query head",
    "contiguous copy of the gradient of the output",
    "contiguous copy of the output",
)
"""Workspaces that have formulas, by the names that the table of workspaces gives them."""
_CHUNKS = (1, TWO_CHUNKS, NUM_CHUNKS)


def source_hash() -> str:
    """Hash the sources that decide what a trace looks like."""
    digest = hashlib.sha256()
    for package in ("build", "pretend", "simulate"):
        folder = resources.files("brimful").joinpath(package)
        for file in sorted(Path(str(folder)).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def data_folder() -> Path:
    """Return the folder of the shipped profiles."""
    return Path(str(resources.files("brimful").joinpath("data/profiles")))


def shipped_keys() -> tuple[str, ...]:
    """List every profile that is shipped; ungrouped heads matter to written-out attention only."""
    keys = product(ARCHITECTURES, TRACED_PRECISIONS, TRACED_ATTENTIONS, get_args(Kernels))
    return tuple(
        f"{architecture}.hf.{precision}.{attention}.{kernels}"
        for architecture, precision, attention, kernels in keys
        if "mha" not in architecture or is_written_out(precision, attention, kernels)
    )


def split_key(key: str) -> tuple[str, Precision, Attention, Kernels]:
    """Take a profile's key apart into architecture, precision, attention and kernels.

    Raises:
        InputError: It is not a key.
    """
    parts = key.split(".")
    if len(parts) != 5 or parts[0] not in ARCHITECTURES or parts[1] != "hf":  # noqa: PLR2004
        raise InputError(
            f"{key!r} is not a profile key; write ARCHITECTURE.hf.PRECISION.ATTENTION.KERNELS with "
            f"an architecture of {', '.join(ARCHITECTURES)}"
        )
    return (parts[0], *msgspec.convert(parts[2:], tuple[Precision, Attention, Kernels]))


def make_profile(key: str, *, on_progress: Callable[[float], None]) -> Profile:
    """Trace and fit every variant of a key.

    Args:
        key: See ``cost.profiles.profile_key``.
        on_progress: Called with the share that is done.

    Returns:
        The profile.

    Raises:
        UnsupportedError: The traces at two shapes are not the same program, or a size is no
            product of dimensions.
    """
    tables = Tables()
    variants: dict[str, Variant] = {}
    bodies: tuple[Body, ...] = ("plain", "checkpointed", "mixed")
    for body in bodies:
        for num_chunks in _CHUNKS:
            variants[variant_key(body, num_chunks=num_chunks)] = _make_variant(
                key, body, num_chunks=num_chunks, tables=tables
            )
            on_progress(len(variants) / (len(_CHUNKS) * len(bodies)))
    return Profile(
        schema=PROFILE_SCHEMA,
        key=key,
        versions=versions(),
        source_hash=source_hash(),
        kinds=tuple(tables.kinds),
        works=tuple(tables.works),
        variants=variants,
    )


def _make_variant(key: str, body: Body, *, num_chunks: int, tables: Tables) -> Variant:
    architecture, precision, attention, kernels = split_key(key)
    recordings, shapes = [], []
    num_checkpointed = 0 if body == "plain" else GROUP_SIZE
    for sizes in _SHAPES:
        spec = _small_model(architecture, sizes, num_layers=(1 + (body == "mixed")) * GROUP_SIZE)
        job = _job(spec, precision, micro_batch=sizes[0], seq_len=sizes[1])
        strategy = Strategy(
            micro_batch=sizes[0],
            activation_checkpointing=f"full:{num_checkpointed}" if num_checkpointed else "none",
            loss_chunks=num_chunks,
            attention=attention,
        )
        traced = trace(job, strategy, imitate=kernels, count_costs=True, num_steps=1)
        recordings.append(_with_formulas(traced.recording))
        chunk_tokens = sizes[0] * sizes[1] // num_chunks
        shapes.append(
            dimensions(spec, micro_batch=sizes[0], seq_len=sizes[1], chunk_tokens=chunk_tokens)
        )
    try:
        fitter = RunFitter(recordings, tuple(shapes), tables, num_checkpointed)
        return Variant(first=fitter.runs(micro_batch=0), later=fitter.runs(micro_batch=1))
    except ValueError as error:
        raise UnsupportedError(f"{key} ({body}) cannot be profiled: {error}") from error


def _with_formulas(recording: Recording) -> Recording:
    """Leave out workspaces that have no formula: all but those of flash attention and softmax.

    Theirs hang on the card's multiprocessors, on tiles and thresholds, and are small beside what
    is alive then; cuBLAS's, which stays, is closed form (``cost.memory``).
    """
    kept = np.array([name in FITTED_BUFFERS for name in recording.ops], dtype=bool)
    workspace = np.array([item == WORKSPACES for item in recording.items], dtype=bool)
    return recording.without(workspace[recording.item] & ~kept[recording.op])


def _job(spec: ModelSpec, precision: Precision, *, micro_batch: int, seq_len: int) -> Job:
    return plain_job(
        spec,
        precision=precision,
        seq_len=seq_len,
        global_batch=2 * micro_batch,
        num_steps=2,
        learning_rate=1e-3,
    )


def _small_model(architecture: str, sizes: Sequence[int], *, num_layers: int) -> ModelSpec:
    _, _, kv_heads, per_kv, head_dim, hidden, intermediate, vocab, positions = sizes
    model_type, *flags = architecture.split("-")
    if model_type == "gpt2":
        heads = kv_heads * per_kv
        return read_config(
            architecture,
            {
                "model_type": "gpt2",
                "n_embd": heads * head_dim,
                "n_head": heads,
                "n_inner": intermediate,
                "n_layer": num_layers,
                "vocab_size": vocab,
                "n_positions": positions,
                "bos_token_id": None,
                "eos_token_id": None,
            },
        )
    heads = kv_heads if "mha" in flags else kv_heads * per_kv
    return read_config(
        architecture,
        {
            "model_type": model_type,
            "hidden_size": hidden // heads * heads,
            "intermediate_size": intermediate,
            "num_hidden_layers": num_layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "vocab_size": vocab,
            "max_position_embeddings": positions,
            "tie_word_embeddings": "tied" in flags,
        },
    )
