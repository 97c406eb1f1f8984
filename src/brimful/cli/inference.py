"""``--task inference`` of ``estimate`` and ``simulate``: a model that is loaded to write text."""

import argparse
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec

from brimful.cli import defaults, flags, output_paths, parsing, resolved, usual
from brimful.cli.output import BAD_INPUT, DOES_NOT_FIT, FITS, show_json, tell
from brimful.cli.proof import word_code, word_of
from brimful.cost.formats import COMPUTE_BYTES, FORMATS, WeightsFormat
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster, spelled
from brimful.text.escaping import json_text, one_line
from brimful.text.terminal import note, say
from brimful.units import parse_length

if TYPE_CHECKING:
    from brimful.cost.inference import InferenceEstimate, InferenceJob
    from brimful.cost.inference_shared import SharedInference
    from brimful.models.spec import ModelSpec
    from brimful.pretend.recording import Recording
    from brimful.show.answer import Answer
    from brimful.show.inference import Beside
    from brimful.show.summary import Fact
    from brimful.simulate.inference import InferenceSimulation

SCHEMA = "brimful.inference/1"
_SHORT = 512
"""Tokens of a text that no class refuses; what is read off a model does not hang on it."""
CLASS_ERRORS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What a class of transformers may raise whose forward does not run on the pretend GPU."""
TASK = flags.INFERENCE
_OWN = ("weights_format", "prompt_len")
_AS_LARGE = {"fp8": "int8", "float8": "int8", "fp4": "int4", "nvfp4": "int4"}
"""Formats of others, and ours with as many bits a weight."""
_READS_PUBLISHED = 7.5
"""The least compute capability that has kernels for weights in MXFP4."""
_SHARED = (
    "task", "precision", "seq_len", "global_batch", "micro_batch", "vocab_size", "max_positions",
    "tp", "allocator",
)  # fmt: skip
"""Flags of training's that mean the same here."""


def _as_large_words(text: str) -> str:
    """Say that a format is another's in name alone."""
    return ": as many bits a weight, scales aside" if text else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``--task inference``."""
    add = parser.add_argument_group("inference (--task inference)").add_argument
    formats = ", ".join(get_args(WeightsFormat))
    add(
        "--weights-format",
        metavar="NAME",
        type=parsing.choice(
            "weights-format", get_args(WeightsFormat), _AS_LARGE, remark=_as_large_words
        ),
        help=f"how weights are held: {formats}; default: --precision, as "
        f"gpt-oss is published, or {defaults.INFERENCE}",
    )
    add(
        "--prompt-len",
        metavar="N",
        type=parsing.whole("--prompt-len", read=parse_length),
        help="tokens of each sequence that one forward reads; default: all of --seq-len, half of "
        "it with brimful infer",
    )


def is_asked(args: argparse.Namespace) -> bool:
    """Whether a command line is about inference."""
    if args.task == TASK:
        return True
    for name in _OWN:
        if getattr(args, name) is not None:
            raise InputError(
                f"--{name.replace('_', '-')} {getattr(args, name)} belongs to --task {TASK}; give "
                f"that too, or leave it out"
            )
    return False


def run_estimate(args: argparse.Namespace) -> int:
    """Predict and print."""
    from brimful.cost.decoding import decoding_of
    from brimful.cost.held import pack_experts
    from brimful.cost.inference import estimate_inference, why_not_simulated
    from brimful.cost.inference_limits import in_chunks, limits, other_formats
    from brimful.show.inference import Beside, fits_beside, inference_summary

    job, cluster = asked(args)
    if cluster.num_devices > 1:
        return _run_shared(args, job, cluster)
    estimate = estimate_inference(job, cluster)
    floor, room = estimate.predicted_floor_bytes, estimate.usable_bytes
    saved = pack_experts(job.model, job.weights_format, job.compute)
    if saved and estimate.fits is False and floor - saved <= room:  # as engines hold them
        return _run_shared(args, job, cluster)
    formats, most = other_formats(job, cluster), limits(job, cluster)
    decoding = decoding_of(job, cluster)
    forward_bytes = None
    if estimate.fits is None and not args.json and find_spec("torch"):
        say(f"{estimate.unknown}: it is simulated", file=sys.stderr, flush=True)
        try:
            if not why_not_simulated(job, cluster.device):
                beside = Beside(formats, None, decoding)
                return _tell_simulated(args, job, cluster, estimate, beside)
            forward_bytes = _forward_bytes(job, cluster)
        except (UnsupportedError, *CLASS_ERRORS) as error:
            say(f"brimful: it cannot be simulated: {one_line(str(error))}", file=sys.stderr)
    if args.json:
        told = {**inputs_json(job, cluster), **msgspec.structs.asdict(estimate)}
        others = [fit._asdict() for fit in formats]
        chunked = in_chunks(job, cluster)
        bounds = {
            "limits": most and most._asdict(),
            "in_chunks": chunked and chunked.limits._asdict(),
            "decoding": decoding and decoding._asdict(),
        }
        show_json({**told, "formats": others, **bounds})

    together = None
    if most is not None and most.num_sequences > job.num_sequences:
        many = msgspec.structs.replace(job, num_sequences=most.num_sequences)
        together = decoding_of(many, cluster)
    chunked = in_chunks(job, cluster)
    beside = Beside(formats, most, decoding, forward_bytes, together, chunked)
    fits = fits_beside(estimate, beside)

    def answer() -> "Answer":
        from brimful.report.inference import inference_tables
        from brimful.show.answer import Answer

        tables = inference_tables(job, cluster, estimate, formats=formats, limits=most)
        summary = inference_summary(job, cluster, estimate, beside)
        return Answer(summary, _assumed(args, job), (tables,))

    tell(args, answer)
    if fits is None:
        return BAD_INPUT
    return FITS if fits else DOES_NOT_FIT


def _forward_bytes(job: "InferenceJob", cluster: Cluster) -> int:
    """Simulate what a forward takes beside weights and cache, where weights are as they compute."""
    from brimful.values.results import TRANSIENTS, WORKSPACES

    plain = msgspec.structs.replace(job, weights_format=job.compute)
    _, simulation = _simulated(plain, cluster, allocator="")
    return sum(item.num_bytes for item in simulation.items if item.name in {TRANSIENTS, WORKSPACES})


def _whole_forward(job: "InferenceJob", cluster: Cluster) -> int | None:
    """Simulate a forward of one GPU that had all of a model; None: it cannot be simulated."""
    kind = job.model.model_type
    say(f"the forward of {kind} has no formula: it is simulated", file=sys.stderr, flush=True)
    alone = msgspec.structs.replace(
        cluster, num_devices=1, num_nodes=1, devices_per_node=1, link="", network=""
    )
    try:
        return _forward_bytes(job, alone)
    except (UnsupportedError, *CLASS_ERRORS) as error:
        say(f"brimful: it cannot be simulated: {one_line(str(error))}", file=sys.stderr)
        return None


def _in_chunks(
    job: "InferenceJob", cluster: Cluster, whole: "SharedInference"
) -> "SharedInference | None":
    """Bound the same with its prompts read in chunks, as engines do; None: nothing is lacking.

    ``whole``: with all of a prompt read by one forward, which was simulated.
    """
    from brimful.cost.inference_limits import CHUNK_TOKENS
    from brimful.cost.inference_shared import share_inference

    if whole.fits or whole.forward_bytes is None or job.prompt_len <= CHUNK_TOKENS:
        return None
    less = msgspec.structs.replace(job, prompt_len=CHUNK_TOKENS)
    forward = _whole_forward(less, cluster)
    return share_inference(less, cluster)._replace(simulated_forward_bytes=forward)


def _run_shared(args: argparse.Namespace, job: "InferenceJob", cluster: Cluster) -> int:
    """Bound what each of several GPUs holds, and print."""
    from brimful.cost.decoding import decoding_of
    from brimful.cost.inference_shared import most_shared, other_shared_formats, share_inference

    shared, decoding = share_inference(job, cluster), decoding_of(job, cluster)
    chunked = None
    if shared.fits is None and shared.beside_bytes is None and find_spec("torch"):
        shared = shared._replace(simulated_forward_bytes=_whole_forward(job, cluster))
        chunked = _in_chunks(job, cluster, shared)
    forward = (chunked or shared).simulated_forward_bytes
    fitting = other_shared_formats(job, cluster, forward)
    most = None
    if shared.fits is False:
        most = most_shared(job, cluster, shared.simulated_forward_bytes)
    if args.json:
        bounds = {
            "least_bytes": shared.least_bytes,
            "most_bytes": shared.most_bytes,
            "formats": fitting,
            "most": most and most._asdict(),
            "decoding": decoding and decoding._asdict(),
            "chunk_tokens": chunked and chunked.prompt_len,
            "chunked_most_bytes": chunked and chunked.most_bytes,
        }
        show_json({**inputs_json(job, cluster), **shared._asdict(), **bounds, "fits": shared.fits})

    def answer() -> "Answer":
        from brimful.show.answer import Answer
        from brimful.show.inference import Beyond, shared_summary

        summary = shared_summary(job, cluster, shared, Beyond(fitting, decoding, most, chunked))
        return Answer(summary, _assumed(args, job), ())

    tell(args, answer)
    if shared.fits is None:
        return BAD_INPUT
    return FITS if shared.fits else DOES_NOT_FIT


def run_simulate(args: argparse.Namespace) -> int:
    """Simulate, compare with the prediction, and print."""
    job, cluster = asked(args)
    if cluster.num_devices > 1:
        raise UnsupportedError(
            f"--task {TASK} is simulated on 1 device, and {spelled(cluster)} are "
            f"{cluster.num_devices}; use 1x{cluster.name}, or brimful estimate",
            nearest={"gpus": f"1x{cluster.name}", "tp": None},
        )
    from brimful.cost.inference import estimate_inference

    return _tell_simulated(args, job, cluster, estimate_inference(job, cluster))


def _simulated(
    job: "InferenceJob", cluster: Cluster, *, allocator: str
) -> "tuple[Recording, InferenceSimulation]":
    """Run a job on the pretend GPU."""
    from brimful.process.library_output import quiet_libraries

    quiet_libraries()
    from brimful.simulate.inference import read_inference, trace_inference

    start = time.perf_counter()
    recording = trace_inference(job, cluster.device)
    spent_s = time.perf_counter() - start
    return recording, read_inference(recording, cluster, simulate_s=spent_s, allocator=allocator)


def _tell_simulated(
    args: argparse.Namespace,
    job: "InferenceJob",
    cluster: Cluster,
    estimate: "InferenceEstimate",
    beside: "Beside | None" = None,
) -> int:
    """Simulate, and print beside what is predicted; what else is known of the job comes below."""
    from brimful.files.writing import write_text

    recording, simulation = _simulated(job, cluster, allocator=args.allocator or "")
    if beside is None:
        if args.output is not None:
            write_text(args.output, json_text(simulation))
        allocator = args.allocator or ""
        output_paths.write_simulated_files(args, recording, cluster, allocator=allocator)
    word = word_of(simulation, estimate.usable_bytes)
    if args.json:
        told = {**inputs_json(job, cluster), **msgspec.structs.asdict(simulation)}
        peak = estimate.predicted_peak_allocated_bytes
        usable = {"usable_bytes": estimate.usable_bytes, "fits": word == "fits", "word": word}
        show_json({**told, "predicted_peak_allocated_bytes": peak, **usable})

    def answer() -> "Answer":
        from brimful.report.inference import simulation_tables
        from brimful.show.answer import Answer
        from brimful.show.inference import inference_simulation_summary

        tables = simulation_tables(job, cluster, estimate, simulation)
        summary = inference_simulation_summary(job, cluster, estimate, simulation, word, beside)
        written = output_paths.written_facts(args) if beside is None else ()
        return Answer(summary, written, (tables,))

    tell(args, answer)
    return word_code(args, word)


def asked(args: argparse.Namespace) -> "tuple[InferenceJob, Cluster]":
    """Resolve a command line of inference."""
    if resolved.is_plan(args.model):
        raise InputError(f"{args.model} is a plan of training; --task {TASK} takes a model")
    # Refuse flags of training.
    for name in flags.TRAINING:
        if name not in _SHARED and getattr(args, name, None) is not None:
            raise InputError(
                f"--{name.replace('_', '-')} {getattr(args, name)} has no meaning with --task "
                f"{TASK}, which trains nothing; leave it out",
                nearest={name: None},
            )
    from brimful.cost.inference import InferenceJob, check_inference, compute_of

    model, cluster = resolved.model_from(args), resolved.cluster_from(args)
    weights_format = _format_from(args, model, cluster)
    seq_len = args.seq_len or defaults.seq_len(model)
    job = InferenceJob(
        model=model,
        weights_format=weights_format,
        compute=_precision_from(args) or compute_of(weights_format),
        num_sequences=_num_texts(args),
        seq_len=seq_len,
        prompt_len=args.prompt_len or seq_len,
    )
    _read(args, job)
    check_inference(job)
    if args.tp not in {None, cluster.num_devices}:
        raise InputError(
            f"--tp {args.tp} with --task {TASK} is for as many GPUs, and {spelled(cluster)} are "
            f"{cluster.num_devices}; leave it out, or give {args.tp} of them",
            nearest={"tp": None},
        )
    return job, cluster


def _read(args: argparse.Namespace, job: "InferenceJob") -> None:
    """Read off a model that no file here describes what it holds and keeps, once."""
    from brimful.cost.kv_cache import CACHED
    from brimful.models.config import default_task
    from brimful.models.traced import find_built, find_cached

    model = job.model
    if model.model_type in CACHED or default_task(model) != "causal-lm":
        return
    if (find_built(model) is not None and find_cached(model) is not None) or not find_spec("torch"):
        return
    from brimful.cli.progress import Progress
    from brimful.process.library_output import quiet_libraries
    from brimful.process.quick_imports import quick_imports

    quiet_libraries()
    with Progress("reading", quiet=args.json), quick_imports():
        from brimful.build.cached import read_cached
        from brimful.build.layout import read_built
        from brimful.models.traced import keep_cached
        from brimful.values.job import plain_job

        plain_text = plain_job(model, seq_len=min(_SHORT, model.max_seq_len))
        read_built(plain_text, usual.attention_from(args, plain_text, None))
        plain = msgspec.structs.replace(job, weights_format="bf16", compute="bf16")
        keep_cached(model, read_cached(plain))


def _num_texts(args: argparse.Namespace) -> int:
    """Return how many texts are there at once: either batch says so."""
    micro = args.micro_batch
    each = max(micro) if isinstance(micro, list) else micro
    if each and args.global_batch and each != args.global_batch:
        raise InputError(
            f"--micro-batch {each} and --global-batch {args.global_batch} both say how many texts "
            f"are there at once with --task {TASK}; give one of them",
            nearest={"micro_batch": None},
        )
    return each or args.global_batch or 1


def _format_from(args: argparse.Namespace, model: "ModelSpec", cluster: Cluster) -> WeightsFormat:
    from brimful.cost.exported import exported_format

    exported = exported_format(model)
    if exported is not None and args.weights_format not in {None, exported}:
        raise InputError(
            f"{args.model} holds weights in {exported} and --weights-format {args.weights_format} "
            f"asks for another one; leave it out, or give the model that it was made of"
        )
    given = exported or args.weights_format or _precision_from(args) or _format_named(args)
    return cast("WeightsFormat", given or _published(model, cluster) or defaults.INFERENCE)


def _published(model: "ModelSpec", cluster: Cluster) -> str:
    """Return the format in which a model is published, where kernels read it; else nothing.

    Elsewhere transformers loads it in bf16: ``Mxfp4HfQuantizer.validate_environment`` (5.23).
    """
    from brimful.models.architectures import record_of

    device = cluster.device
    reads = device.kernels == "cuda" and device.capability >= _READS_PUBLISHED
    return record_of(model.model_type).published if reads else ""


def _assumed(args: argparse.Namespace, job: "InferenceJob") -> "tuple[Fact, ...]":
    """Say that the format is the published one, where nobody gave another."""
    from brimful.cost.formats import SERVED
    from brimful.show.summary import Fact

    if job.weights_format not in SERVED or args.weights_format is not None:
        return ()
    words = f"{job.weights_format}, as {job.model.name} is published (--weights-format bf16: as it"
    return (Fact("assumed", f"{words} is without kernels for that)"),)


def _format_named(args: argparse.Namespace) -> str:
    """Return the format that the model's name says; else nothing."""
    from brimful.models.name_parts import format_named

    named, words = format_named(args.model)
    if not named:
        return ""
    note(f"brimful: --weights-format {named} is taken for {words!r} in the model's name")
    return named


def _precision_from(args: argparse.Namespace) -> Any:
    if args.precision is not None and args.precision not in COMPUTE_BYTES:
        raise InputError(
            f"--precision {args.precision} is a recipe of training; with --task {TASK} give "
            f"{', '.join(COMPUTE_BYTES)}"
        )
    return args.precision


def inputs_json(job: "InferenceJob", cluster: Cluster) -> dict[str, Any]:
    """Return the inputs in full."""
    format_words = FORMATS[job.weights_format]
    return {"schema": SCHEMA, "job": job, "weights_format_is": format_words, "cluster": cluster}
