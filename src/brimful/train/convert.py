"""Turning a finished run, or any folder of a model, into one that holds integers, and checking it.

The model is built as training builds it, rounding as ``qat`` rounds; its held-out loss is taken
without rounding, with it, with the integers, and with the integers read back from what was written.
The last three must be one number: what was trained is what is kept.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.program import Program
from brimful.build.rounding import convert, left_whole, rounded_layers
from brimful.build.step import evaluate
from brimful.errors import InputError
from brimful.files.writing import write_text
from brimful.models.config import default_task, load_model
from brimful.models.kernels import attentions_of
from brimful.techniques.quantization import LONGEST_ROW, Quantization, Scheme, default_group
from brimful.techniques.runnable import check_strategy
from brimful.text.escaping import json_text
from brimful.train.data.prepare import prepare
from brimful.train.data.source import DataSource
from brimful.train.folders import replacing
from brimful.train.rounded_export import read_rounded, weight_bytes, write_rounded
from brimful.train.run_folder import read_source
from brimful.train.settings import NUM_EVAL_TOKENS
from brimful.values.job import FP8, QAT, Job, check_job, plain_job
from brimful.values.plan import read_plan
from brimful.values.run_files import MODEL, PLAN_FILE, SOURCE_FILE
from brimful.values.strategy import Attention, Strategy

SCHEMA = "brimful.conversion/1"
RESULT_FILE = "conversion.json"
TOLERANCE = 1e-5
"""By how much losses may differ that are of the same numbers, in nats."""
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}
_ADAPTERS = "adapter_config.json"


class Given(NamedTuple):
    """What is converted, and how it is judged.

    Attributes:
        folder: Of the weights, configuration and tokenizer.
        job: What it was trained for; its data is judged by.
        source: Of the held-out sample.
        micro_batch: Rows of it that run together.
    """

    folder: Path
    job: Job
    source: DataSource
    micro_batch: int


class Conversion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a conversion came to.

    Attributes:
        schema: ``SCHEMA``.
        quantization: What the layers hold now.
        trained_for_it: Whether the model was trained by ``qat`` for this.
        num_layers: Linear layers that were quantised.
        num_left: Linear layers that were left whole, the output layer among them.
        num_targets: Of the held-out sample.
        measured_whole_loss: Held-out loss without any rounding, in nats per target.
        measured_prepared_loss: The same, rounding as ``qat`` does.
        measured_converted_loss: The same, with integers.
        measured_reloaded_loss: The same, with integers read from the folder.
        measured_weight_bytes_before: What all parameters took in memory.
        measured_weight_bytes_after: The same, converted.
        measured_file_bytes_before: What the files of weights took.
        measured_file_bytes_after: The same, converted.
        largest_difference: Between the last three losses, in nats.
        allowed_difference: ``TOLERANCE``.
        is_kept: Whether the one is at most the other.
    """

    schema: str
    quantization: Quantization
    trained_for_it: bool
    num_layers: int
    num_left: int
    num_targets: int
    measured_whole_loss: float
    measured_prepared_loss: float
    measured_converted_loss: float
    measured_reloaded_loss: float
    measured_weight_bytes_before: int
    measured_weight_bytes_after: int
    measured_file_bytes_before: int
    measured_file_bytes_after: int
    largest_difference: float
    allowed_difference: float
    is_kept: bool


def given_run(folder: Path, source: DataSource | None) -> Given:
    """Read what a finished run left.

    ``source``: data to judge by; None: the run's own.
    """
    plan, model = read_plan(folder / PLAN_FILE), folder / MODEL
    if not model.is_dir():
        raise InputError(
            f"{folder} holds no trained model; finish the run with brimful train --resume first"
        )
    if (model / _ADAPTERS).is_file():
        raise InputError(
            f"{model} holds adapters, which have no weights of their own to convert; train with "
            f"--merge, or convert the model that they are for"
        )
    found = read_source(folder / SOURCE_FILE) if source is None else source
    return Given(model, plan.job, found, plan.strategy.micro_batch)


def given_folder(folder: Path, source: DataSource, *, seq_len: int | None = None) -> Given:
    """Read a folder of ``transformers``; its precision is that of its configuration.

    ``folder``: with weights, ``config.json`` and a tokenizer. ``seq_len``: tokens of a row of it;
    None: the model's positions, at most ``LONGEST_ROW``.
    """
    model = load_model(str(folder))
    if "quantization_config" in model.hf_config:
        raise InputError(f"{folder} is quantised already; give the model that it was made of")
    dtype = str(model.hf_config.get("dtype") or model.hf_config.get("torch_dtype"))
    job = plain_job(
        model,
        weights=str(folder),
        task=default_task(model),
        precision=_PRECISIONS.get(dtype, "fp32"),
        seq_len=seq_len or min(model.max_seq_len, LONGEST_ROW),
    )
    return Given(folder, job, source, 1)


def chosen(job: Job, scheme: Scheme | None, group_size: int | None) -> Quantization:
    """Return what a job's model is converted to.

    ``job``: of ``Given``; one of ``qat`` has said it. ``scheme``: asked for; None: the job's.
    ``group_size``: likewise; None: the job's, or the scheme's own.
    """
    trained = job.quantization
    if scheme is None:
        if trained is None:
            raise InputError("nothing says what to convert to; give --to int8 or --to int4")
        scheme = trained.scheme
    usual = default_group(scheme)
    if trained is not None and trained.scheme == scheme:
        usual = trained.group_size
    asked = Quantization(scheme=scheme, group_size=usual if group_size is None else group_size)
    if trained is not None and asked != trained:
        raise InputError(
            f"the run was trained for {trained.scheme} with group_size={trained.group_size}, and "
            f"{asked.scheme} with group_size={asked.group_size} is asked for; leave --to and "
            f"--group-size out"
        )
    return asked


def convert_model(
    given: Given, quantization: Quantization, *, out: Path, cache: Path
) -> Conversion:
    """Convert, write and check.

    ``out``: folder that is written, all or nothing; the check is written beside the weights. Raises
    UnsupportedError: torchao is not installed, or the model has no layer to quantise. Raises
    RunError: the disk is full.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--output {out} is not empty; choose another folder")
    job, strategy = _rounding(given, quantization)
    data = prepare(
        given.source,
        given.job,
        micro_batch=given.micro_batch,
        cache=cache,
        num_eval_tokens=NUM_EVAL_TOKENS,
    )
    program = build_program(job, strategy, torch.device("cpu"))
    with replacing(out) as temporary:
        conversion = _converted(program, data.heldout, given, temporary)
        write_text(temporary / RESULT_FILE, json_text(conversion))
    return conversion


def _converted(program: Program, sample: Sequence[Batch], given: Given, folder: Path) -> Conversion:
    """Convert a prepared program, write it into a folder, read it back, and judge every state."""
    job, model = program.job, program.model
    assert job.quantization is not None  # ``_rounding`` says it
    layers, left = rounded_layers(model), left_whole(model, job.keep_fp32)
    bytes_before = weight_bytes(model)
    _let_round(layers, is_on=False)
    whole = evaluate(program, sample)
    _let_round(layers, is_on=True)
    prepared = evaluate(program, sample)
    convert(model, job.quantization)
    converted, bytes_after = evaluate(program, sample), weight_bytes(model)
    write_rounded(model, job.quantization, left=left, source=given.folder, folder=folder)
    read_rounded(model, folder)
    reloaded = evaluate(program, sample)
    rounded = (prepared, converted, reloaded)
    difference = max(rounded) - min(rounded)
    return Conversion(
        schema=SCHEMA,
        quantization=job.quantization,
        trained_for_it=given.job.quantization is not None,
        num_layers=len(layers),
        num_left=len(left),
        num_targets=count_targets(sample),
        measured_whole_loss=whole,
        measured_prepared_loss=prepared,
        measured_converted_loss=converted,
        measured_reloaded_loss=reloaded,
        measured_weight_bytes_before=bytes_before,
        measured_weight_bytes_after=bytes_after,
        measured_file_bytes_before=_file_bytes(given.folder),
        measured_file_bytes_after=_file_bytes(folder),
        largest_difference=difference,
        allowed_difference=TOLERANCE,
        is_kept=difference <= TOLERANCE,
    )


def _rounding(given: Given, quantization: Quantization) -> tuple[Job, Strategy]:
    """Return the job that builds the model as ``qat`` trains it, and how it is run."""
    job = given.job
    changed = msgspec.structs.replace(
        job,
        method=QAT,
        adapter=None,
        quantization=quantization,
        weights=str(given.folder),
        precision="bf16-mixed" if job.precision == FP8 else job.precision,
        global_batch=given.micro_batch,
    )
    strategy = Strategy(
        micro_batch=given.micro_batch,
        activation_checkpointing="none",
        loss_chunks=1,
        attention=_attention(changed),
    )
    return check_job(changed), check_strategy(changed, strategy)


def _attention(job: Job) -> Attention:
    return "sdpa" if "sdpa" in attentions_of(job) else "eager"


def _let_round(layers: dict[str, torch.nn.Module], *, is_on: bool) -> None:
    """Switch the rounding of prepared layers."""
    for layer in layers.values():
        for name in ("activation_fake_quantizer", "weight_fake_quantizer"):
            getattr(layer, name).enabled = is_on


def _file_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
