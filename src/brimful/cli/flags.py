"""The flags that verbs share, and how they become a Job, a Cluster and a Strategy."""

import argparse
import difflib
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast, get_args

import msgspec

from brimful.cli import defaults, usual
from brimful.cli.elsewhere import NOT_RUN, refuse_elsewhere, taken_as
from brimful.cli.other_flags import NO_FLAG, taken_for_ours
from brimful.errors import InputError, unknown_name
from brimful.hardware.cluster import Cluster, Device, check_cluster, spelled
from brimful.hardware.datasheets import has_one_memory
from brimful.hardware.gpus import check_gpu, count_devices, labelled_bytes, load_cluster
from brimful.hardware.links import network_names
from brimful.hardware.names import split_counts
from brimful.models.config import default_task, for_task, load_model
from brimful.models.names import taken_words
from brimful.models.resized import with_num_labels, with_positions, with_vocab_size
from brimful.models.spec import ModelSpec
from brimful.models.targets import check_targets
from brimful.techniques.exact import exactness
from brimful.techniques.fused_kernels import FusedKernels
from brimful.techniques.kernel_support import check_precision
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.techniques.parallel.stages import ONE_STAGE
from brimful.techniques.parallel.stages import Schedule as PipelineSchedule
from brimful.techniques.quantization import GROUP_SIZE, Quantization, Scheme, default_group
from brimful.text.terminal import note, noted
from brimful.units import Labelled, parse_bytes, parse_card_bytes, parse_count, parse_length
from brimful.values.job import (
    PACKINGS,
    PREFERENCE,
    QAT,
    SCALED,
    WHOLE,
    Adapter,
    Allowed,
    Base,
    Job,
    LossScale,
    Method,
    Optimizer,
    Packing,
    Precision,
    Preference,
    Schedule,
    Task,
    Upcast,
    check_job,
)
from brimful.values.plan import read_plan
from brimful.values.strategy import (
    Accumulate,
    Attention,
    Compile,
    Engine,
    Reference,
    Strategy,
    Zero,
    check_strategy,
    default_accumulate,
    default_reference,
    placed,
)

INFERENCE = "inference"
"""A task that trains nothing; ``brimful.cli.inference`` takes it over."""
PLAN_SUFFIXES = (".yaml", ".yml")
"""By these a plan is told from a model's config.json."""


class Asked(NamedTuple):
    """What the user asked about, resolved and checked."""

    job: Job
    cluster: Cluster
    strategy: Strategy


HELP_WIDTH = 100
_FLAG_WIDTH = 32


class HelpText(argparse.HelpFormatter):
    """argparse's help, at most 100 columns wide, with the metavar of a flag written once."""

    def __init__(self, prog: str) -> None:
        """Fit the terminal."""
        width = min(HELP_WIDTH, shutil.get_terminal_size((HELP_WIDTH, 24)).columns)
        super().__init__(prog, max_help_position=_FLAG_WIDTH, width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        # As Python 3.13 does, so that help and docs are the same on every version.
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        metavar = self._format_args(action, action.dest.upper())
        return f"{', '.join(action.option_strings)} {metavar}"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours: one sentence, no usage dump."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print.

        Raises:
            InputError: Always.
        """
        refused = sys.exception()
        if isinstance(refused, argparse.ArgumentError):
            # argparse catches every ValueError of a flag's type and drops what it said.
            cause = refused.__context__
            if isinstance(cause, InputError):
                raise cause
        raise InputError(f"{message}; {self._nearest_flag(message)}see {self.prog} --help")

    def parse_known_args(  # type: ignore[override]  # argparse's are overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, with flags of other programs taken for ours."""
        given = list(sys.argv[1:] if args is None else args)
        taken = taken_for_ours(given, self._option_string_actions)
        for words in taken.notes:
            _note_once(words)
        return super().parse_known_args(taken.arguments, namespace)

    def _nearest_flag(self, message: str) -> str:
        misspelt = re.search(r"(?<=^unrecognized arguments: )--[^\s=]+", message)
        known = list(self._option_string_actions)
        near = difflib.get_close_matches(misspelt[0], known, n=1) if misspelt else []
        if misspelt and (words := NO_FLAG.get(misspelt[0].replace("_", "-"))):
            return f"{words}; "
        return f"did you mean {near[0]}? " if near else ""


def choice(
    what: str,
    allowed: tuple[str, ...],
    others: Mapping[str, str] | None = None,
    *,
    remark: Callable[[str], str] = lambda _: "",
) -> Callable[[str], str]:
    """Return an argparse type that takes one of ``allowed`` and knows the nearest otherwise.

    Args:
        what: It is.
        allowed: That is told.
        others: More that passes, and as what.
        remark: What the note of such a word adds about it.
    """

    def parse(text: str) -> str:
        if text in allowed:
            return text
        taken = {**{name: name for name in allowed}, **(others or {})}
        spelt = {_plain(name): name for name in reversed(taken)}
        found = taken.get(spelt.get(_plain(text), text))
        if found is None:
            raise unknown_name(what, text, allowed)
        if found in allowed:
            _note_once(f"--{what} {found} is taken for {text!r}{remark(text)}")
        return found

    return parse


def _of_paged(optimizer: str) -> str:
    """Say what a paged optimizer does that none here does."""
    if not _plain(optimizer).startswith("paged"):
        return ""
    return (
        ", of which nothing leaves the GPU: a paged one's states do where it is full, which "
        "--offload optimizer comes nearest to"
    )


def _plain(word: str) -> str:
    """Return a word as it is compared: ``AdamW_8bit`` is adamw-8bit."""
    return word.strip().lower().replace("_", "-").replace(" ", "-")


_FRACTION = re.compile(r"\d*\.\d*[1-9]\d*")


def whole(
    what: str, *, least: int = 1, read: Callable[[str], int] = parse_count
) -> Callable[[str], int]:
    """Return an argparse type for counts such as ``4096`` or ``4k``, of ``least`` or more."""

    def parse(text: str) -> int:
        try:
            count = read(text)
        except InputError as error:
            raise InputError(f"{what} {error}") from error
        if _FRACTION.fullmatch(text.strip()):
            raise InputError(f"{what} {text!r} is not a whole number; write it like 4096 or 4k")
        if count < least:
            raise InputError(f"{what} {text} is too few; give {least} or more")
        return count

    return parse


def listed(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return an argparse type for one value, or for a list of them by comma."""

    def parse(text: str) -> Any:
        values = list(dict.fromkeys(kind(part.strip()) for part in text.split(",")))
        return values if len(values) > 1 else values[0]

    return parse


def size(what: str, read: Callable[[str], int] = parse_bytes) -> Callable[[str], int]:
    """Return an argparse type for sizes such as ``1.5GiB``."""

    def parse(text: str) -> int:
        try:
            return read(text)
        except InputError as error:
            raise InputError(f"{what} {error}") from error

    return parse


def number(what: str) -> Callable[[str], float]:
    """Return an argparse type for real numbers."""

    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError as error:
            raise InputError(f"{what} {text!r} is not a number; write it like 3e-4") from error

    return parse


def path(what: str, *, suffixes: tuple[str, ...] = ()) -> Callable[[str], Path]:
    """Return an argparse type for paths, which end in one of ``suffixes`` where there are any."""

    def parse(text: str) -> Path:
        if not text.strip():
            raise InputError(f"{what} {text!r} is no path; give one")
        if suffixes and Path(text).suffix not in suffixes:
            raise InputError(f"{what} {text} must end in {' or '.join(suffixes)}; add it")
        return Path(text)

    return parse


def add_model(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the positional MODEL and the cluster flags.

    Args:
        parser: Of a verb.
        optional: Whether something else may name the model.
    """
    add = parser.add_argument
    nargs = "?" if optional else None
    model = "a name (brimful models), folder, config.json or plan.yaml"
    add("model", metavar="MODEL", nargs=nargs, help=model)
    add(
        "--gpus",
        metavar="GPUS",
        help=f"a name (brimful gpus), 8xh100-80gb, 4x8xh100-80gb; default {defaults.GPUS}",
    )
    add(
        "--network",
        metavar="NAME",
        type=choice("network", network_names()),
        help=f"between nodes: {', '.join(network_names())}; default: of the maker's own systems, "
        f"else of plain servers",
    )
    add(
        "--memory-limit",
        metavar="SIZE",
        type=size("--memory-limit"),
        help="use at most this much of each, e.g. 1.5GiB; the card stays as it is",
    )
    add(
        "--card-memory",
        metavar="SIZE",
        type=size("--card-memory", parse_card_bytes),
        help="of each card: 48GB as cards are labelled, 47.4GiB what programs have of it; default: "
        "what is known of it",
    )
    add(
        "--host-memory",
        metavar="SIZE",
        type=size("--host-memory"),
        help="of a node's host; default: this machine's, unknown of others",
    )


def _whose(*, is_momentum: bool) -> str:
    """Name the rules that read ``beta1`` as the momentum, or as a rate of their moments.

    A rule with another one beside it leaves that to the other.
    """
    every = [rule for rule in OPTIMIZERS.values() if not rule.tells_hidden]
    rules = [rule for rule in every if "beta1" in rule.rates]
    words = [rule.words for rule in rules if rule.is_momentum == is_momentum]
    return " and ".join(f"{word}'s" for word in dict.fromkeys(words))


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the flags that change what is learnt."""
    add = parser.add_argument_group("job (what is learnt)").add_argument
    tasks = (*get_args(Task), INFERENCE)
    add(
        "--task",
        metavar="NAME",
        type=choice("task", tasks, taken_as("task")),
        help=f"{' or '.join(tasks)}; default what the model is made for",
    )
    _add_choice(add, "--method", get_args(Method), defaults.METHOD)
    recipes = f"{defaults.PRECISION}, or {' or '.join(defaults.PRECISIONS[1:])} on older GPUs"
    _add_choice(add, "--precision", get_args(Precision), recipes)
    add("--keep-fp32", metavar="NAMES", help="modules in fp32 though the recipe has 16 bits")
    optimizers = get_args(Optimizer)
    add(
        "--optimizer",
        metavar="NAME",
        type=choice("optimizer", optimizers, taken_as("optimizer"), remark=_of_paged),
        help=f"{' or '.join(optimizers)}; default {defaults.OPTIMIZER}",
    )
    _add_choice(add, "--schedule", get_args(Schedule), defaults.SCHEDULE)
    packings = get_args(Packing)
    add(
        "--packing",
        metavar="NAME",
        type=choice("packing", packings),
        help=f"{' or '.join(packings)}; default: wrapped text, one row per chat or labelled sample",
    )
    add("--weights", metavar="MODEL", help="folder or hub id to start from; default: random")
    _add_whole(add, "--vocab-size", "rows of the embedding at least, for tokens that were added")
    add_length(add, "--max-positions", "of rotary ones, scaled to longer texts (YaRN, linear)")
    _add_whole(add, "--num-labels", "classes of a classifier; default: its own")
    seq_len = f"default: what the model covers, at most {defaults.LONGEST_SEQ_LEN}"
    add_length(add, "--seq-len", f"tokens per sequence, 4k is 4,096; {seq_len}")
    _add_whole(add, "--global-batch", "sequences per optimizer step; default: one micro-batch")
    _add_whole(add, "--steps", f"optimizer steps; default {defaults.NUM_STEPS}")
    _add_whole(add, "--tokens", "tokens of the run, e.g. 1B, instead of --steps")
    _add_number(add, "--learning-rate", f"at its peak; default {defaults.LEARNING_RATE:g}")
    share = f"{defaults.WARMUP_SHARE:g} of the steps"
    _add_whole(add, "--warmup-steps", f"to the learning rate's peak; default {share}", least=0)
    _add_number(add, "--weight-decay", f"default {defaults.WEIGHT_DECAY:g}")
    beta1, beta2 = defaults.BETAS
    momentum, of_moments = _whose(is_momentum=True), _whose(is_momentum=False)
    _add_number(add, "--beta1", f"{of_moments}, or {momentum} momentum; default {beta1:g}")
    _add_number(add, "--beta2", f"{of_moments}; default {beta2:g}")
    _add_number(
        add,
        "--epsilon",
        f"{of_moments}; default {defaults.EPSILON:g}, {defaults.FP16_EPSILON:g} in pure fp16",
    )
    _add_number(add, "--clip", f"largest gradient norm, 0 is off; default {defaults.CLIP:g}")
    _add_whole(add, "--seed", f"of weights and data order; default {defaults.SEED}", least=0)
    add_preference(parser)
    add_adapter(parser)
    add_quantization(parser)
    add_routers(parser)


def add_routers(parser: argparse.ArgumentParser) -> None:
    """Add the flags of what is learnt beside the loss by a mixture of experts."""
    add = parser.add_argument_group("routers (models with experts)").add_argument
    _add_number(add, "--router-aux-loss", "coefficient of the load-balancing loss; default 0")
    _add_number(add, "--router-z-loss", "coefficient of the loss on router logits; default 0")
    add(
        "--allow",
        metavar="NAMES",
        help=f"what may change what is learnt: {', '.join(get_args(Allowed))} (of micro-batches, "
        f"by --router-aux-loss)",
    )


def add_preference(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the loss over pairs of answers, which is part of the job."""
    add = parser.add_argument_group(f"preferences (--task {PREFERENCE})").add_argument
    default = defaults.PREFERENCE
    _add_number(
        add, "--dpo-beta", f"how dear it is to leave the reference; default {default.beta:g}"
    )
    smoothing = f"share of wrong labels; default {default.label_smoothing:g}"
    _add_number(add, "--label-smoothing", smoothing)


def add_adapter(parser: argparse.ArgumentParser) -> None:
    """Add the flags of adapters and of loss scaling, which are parts of the job."""
    add = parser.add_argument_group("adapters (lora, dora, qlora)").add_argument
    _add_whole(add, "--lora-rank", f"default {defaults.LORA_RANK}")
    _add_number(add, "--lora-alpha", f"default {defaults.LORA_ALPHA_PER_RANK:g} x rank")
    targets = ",".join(defaults.LORA_TARGETS)
    add("--lora-targets", metavar="NAMES", help=f"linear layers, by comma; default {targets}")
    add("--trained-modules", metavar="NAMES", help="modules that train in full beside the adapters")
    _add_choice(add, "--adapter-dtype", ("same", "fp32"), "same")
    bases = get_args(Base)
    add(
        "--base",
        metavar="NAME",
        type=choice("base", bases),
        help=f"how frozen weights are held: {', '.join(bases)}; default: the recipe's half "
        f"precision, {defaults.QLORA_BASE} for qlora",
    )
    _add_choice(add, "--upcast", get_args(Upcast), "none")
    add("--input-requires-grad", action="store_const", const=True, help="as PEFT's switch")
    scaling = parser.add_argument_group("loss scaling (fp16-mixed, fp16-master)").add_argument
    scale = defaults.LOSS_SCALE
    _add_number(scaling, "--initial-scale", f"default {scale.initial_scale:g}")
    _add_number(scaling, "--growth-factor", f"default {scale.growth_factor:g}")
    _add_number(scaling, "--backoff-factor", f"default {scale.backoff_factor:g}")
    _add_whole(scaling, "--growth-interval", f"steps; default {scale.growth_interval}")


def add_quantization(parser: argparse.ArgumentParser) -> None:
    """Add the flags of what quantisation-aware training trains for, which are part of the job."""
    add = parser.add_argument_group(f"quantisation-aware training (--method {QAT})").add_argument
    _add_choice(add, "--qat-scheme", get_args(Scheme), defaults.QAT_SCHEME)
    group = f"weights of a row that share a scale, of int4; default {GROUP_SIZE}"
    _add_whole(add, "--qat-group-size", group)


def add_pipeline(parser: argparse.ArgumentParser, *, searched: bool = False) -> None:
    """Add the flags that say how a pipeline is laid out, and in which order it works.

    Args:
        parser: Of the verb.
        searched: Whether what is not given is searched for, or has a default.
    """
    add = parser.add_argument_group("pipeline (--pp 2 or more)").add_argument
    found = "searched for without it"
    rest = found if searched else f"default {defaults.PP_SCHEDULE}"
    add(
        "--pp-schedule",
        metavar="NAME",
        type=choice("pp-schedule", get_args(PipelineSchedule)),
        help=f"order of work: {', '.join(get_args(PipelineSchedule))}; {rest}",
    )
    usual = found if searched else "default 1, or what --pp-schedule needs"
    _add_whole(add, "--stages-per-device", f"pieces of the model on each; {usual}")
    if searched:
        return
    add(
        "--stage-blocks",
        metavar="N,N,...",
        type=_block_counts,
        help="blocks of each stage; default: as even as can be, the head being work too",
    )


def _block_counts(text: str) -> tuple[int, ...]:
    parse = whole("--stage-blocks")
    return tuple(parse(part) for part in text.split(","))


def add_attention(add: Callable[..., Any]) -> None:
    """Add ``--attention``."""
    _add_choice(
        add, "--attention", get_args(Attention), "sdpa, or eager where a model has no other"
    )


def add_strategy(parser: argparse.ArgumentParser, *, searched: bool) -> None:
    """Add the flags that change memory and speed only.

    Args:
        parser: Of the verb.
        searched: Whether what is not given is searched for, or has a default.
    """

    def default(value: object) -> str:
        return "searched for without it" if searched else f"default {value}"

    add = parser.add_argument_group("strategy (how it is run)").add_argument
    _add_whole(
        add,
        "--micro-batch",
        f"sequences a forward pass; {default(defaults.MICRO_BATCH)}",
        many=searched,
    )
    add(
        "--activation-checkpointing",
        "--ac",
        metavar="none|full|full:K|selective",
        type=listed(str) if searched else str,
        help=f"blocks recomputed; {default(defaults.ACTIVATION_CHECKPOINTING)}",
    )
    chunks = default(defaults.LOSS_CHUNKS)
    _add_whole(add, "--loss-chunks", f"pieces of logits and loss; {chunks}", many=searched)
    add_attention(add)
    stage = "searched for without it" if searched else "default 3 on several devices"
    add(
        "--zero",
        metavar="0..3",
        type=listed(stage_of_zero) if searched else stage_of_zero,
        help=f"what is sharded: nothing, optimizer, gradients too, parameters too; {stage}",
    )
    rest = "searched for without it" if searched else "default 1, all devices where --zero is 0"
    _add_whole(add, "--dp-replicate", f"groups that each hold a whole model; {rest}", many=searched)
    rest = "searched for without it" if searched else "default: the devices of a group"
    _add_whole(add, "--dp-shard", f"devices that share one copy; {rest}", many=searched)
    rest = "searched for without it" if searched else "default 1"
    cut = f"devices that share every matrix (tensor parallel); {rest}"
    _add_whole(add, "--tp", cut, many=searched)
    row = "devices in a row, each with some of the blocks (pipeline); default 1"
    _add_whole(add, "--pp", row, many=searched)
    _add_whole(add, "--ep", f"devices that part the experts of each block; {rest}", many=searched)
    add("--cp", type=whole("--cp"), help=argparse.SUPPRESS)  # typed by many, and refused in words
    if not searched:
        add_pipeline(parser)
    add(
        "--accumulate",
        metavar="NAME",
        type=choice("accumulate", get_args(Accumulate)),
        help=f"gradients between micro-batches: {' or '.join(get_args(Accumulate))}; "
        f"default {defaults.ACCUMULATE}",
    )
    references = [name for name in get_args(Reference) if name != "none"]
    add(
        "--reference",
        metavar="NAME",
        type=choice("reference", tuple(references)),
        help=f"what --task {PREFERENCE} compares with: {', '.join(references)}; default "
        f"adapters-off where there are adapters, else resident",
    )
    _add_choice(add, "--engine", get_args(Engine), f"{defaults.ENGINE}; deepspeed is not searched")
    add(
        "--offload",
        metavar="WHAT",
        help="kept on the host: optimizer, parameters:K (which takes the optimizer along), "
        f"activations:K, of the first K blocks, or several with commas; default {defaults.OFFLOAD}",
    )
    add(
        "--optimizer-in-backward",
        action="store_const",
        const=True,
        help="update each parameter as soon as its gradient is whole; needs --clip 0",
    )
    compiled = f"{defaults.COMPILE}; blocks: torch.compile of each block; not searched"
    _add_choice(add, "--compile", get_args(Compile), compiled)
    _add_fused(add, searched=searched)
    add(
        "--allocator",
        metavar="SETTINGS",
        help="of PYTORCH_CUDA_ALLOC_CONF, e.g. expandable_segments:True; "
        + default("PyTorch's own"),
    )


def _add_fused(add: Callable[..., Any], *, searched: bool) -> None:
    tried = "searched for without it, where Liger is installed"
    usually = tried if searched else f"default {defaults.FUSED_KERNELS}"
    allowed = get_args(FusedKernels)
    add(
        "--fused-kernels",
        metavar="NAME",
        type=choice("fused-kernels", allowed),
        help=f"{' or '.join(allowed)}; {usually}; liger: norms, activations, rotary positions and "
        "loss by Liger",
    )


def _add_choice(add: Callable[..., Any], flag: str, allowed: tuple[str, ...], default: str) -> None:
    name = flag.removeprefix("--")
    kind = choice(name, allowed, taken_as(name) if name in NOT_RUN else None)
    add(flag, metavar="NAME", type=kind, help=f"{' or '.join(allowed)}; default {default}")


def _add_whole(
    add: Callable[..., Any], flag: str, words: str, *, least: int = 1, many: bool = False
) -> None:
    kind = whole(flag, least=least)
    add(flag, metavar="N", type=listed(kind) if many else kind, help=words)


def add_length(add: Callable[..., Any], flag: str, words: str) -> None:
    """Add a flag for the length of a text."""
    add(flag, metavar="N", type=whole(flag, read=parse_length), help=words)


def _add_number(add: Callable[..., Any], flag: str, words: str) -> None:
    add(flag, metavar="X", type=number(flag), help=words)


def add_prices(parser: argparse.ArgumentParser, *, market: str | None = None) -> None:
    """Add ``--market`` and ``--prices``."""
    from brimful.cost.money import MARKETS

    parser.add_argument(
        "--market",
        metavar="NAME",
        type=choice("market", MARKETS),
        default=market,
        help="whose prices: secure (data centres) or community (owners of single machines); "
        f"default: {market or 'secure, and community where there is no other'}",
    )
    parser.add_argument(
        "--prices",
        metavar="FILE",
        type=path("--prices"),
        help="YAML or JSON of your own prices: GPU: USD per GPU-hour, or {rent: USD, buy: USD}",
    )


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """Add ``-v``."""
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also print every table: inputs with all defaults, memory by item and phase, "
        "assumptions",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def asked(args: argparse.Namespace) -> Asked:
    """Resolve a model with flags, or a plan file, into checked values.

    Raises:
        InputError: Something given cannot be used, or flags stand beside a plan file.
    """
    if is_plan(args.model):
        refuse_flags(args)
        plan = read_plan(Path(args.model))
        usual.check_runs(plan.job, plan.strategy.attention, plan.cluster.device)
        return Asked(plan.job, plan.cluster, plan.strategy)
    cluster = cluster_from(args)
    job = job_from(args)
    return Asked(job, cluster, strategy_from(args, job, cluster))


def is_plan(model: str) -> bool:
    """Whether what stands where a model may stand is a plan file."""
    return Path(model).suffix in PLAN_SUFFIXES


def refuse_flags(args: argparse.Namespace) -> None:
    """Refuse job and strategy flags beside a plan file.

    Raises:
        InputError: One was given; it would be ignored.
    """
    for name in (
        *_JOB,
        *STRATEGY,
        "gpus",
        "network",
        "memory_limit",
        "card_memory",
        "host_memory",
    ):
        if getattr(args, name, None) is not None:
            raise InputError(
                f"--{name.replace('_', '-')} stands beside the plan {args.model}, which already "
                f"says it; edit the plan or give a model"
            )


_ADAPTER = (
    "lora_rank", "lora_alpha", "lora_targets", "trained_modules", "adapter_dtype", "base", "upcast",
    "input_requires_grad",
)  # fmt: skip
_PREFERENCE = ("dpo_beta", "label_smoothing")
_QUANTIZATION = ("qat_scheme", "qat_group_size")
_ROUTERS = ("router_aux_loss", "router_z_loss", "allow")
_LOSS_SCALE = ("initial_scale", "growth_factor", "backoff_factor", "growth_interval")
_JOB = (
    "task", "method", "precision", "keep_fp32", "optimizer", "schedule", "packing", "weights",
    "vocab_size", "max_positions", "num_labels", "seq_len", "global_batch", "steps", "tokens",
    "learning_rate", "warmup_steps", "weight_decay", "beta1", "beta2", "epsilon", "clip", "seed",
    *_ADAPTER, *_LOSS_SCALE, *_PREFERENCE, *_ROUTERS, *_QUANTIZATION,
)  # fmt: skip
STRATEGY = (
    "micro_batch", "activation_checkpointing", "loss_chunks", "attention",
    "zero", "dp_replicate", "dp_shard", "tp", "ep", "pp", "pp_schedule", "stages_per_device",
    "stage_blocks", "accumulate", "reference", "engine", "offload", "optimizer_in_backward",
    "compile", "fused_kernels", "allocator",
)  # fmt: skip
"""Every flag of a strategy, as argparse calls them; each is a field of ``Strategy``."""
TRAINING = (*_JOB, *STRATEGY)
"""Every flag of a job and of a strategy, as argparse calls them."""


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def cluster_from(args: argparse.Namespace) -> Cluster:
    """Resolve ``--gpus``, ``--network`` and the sizes of memories."""
    name = _or(args.gpus, defaults.GPUS)
    cluster = load_cluster(
        name,
        memory_limit_bytes=args.memory_limit,
        card_memory_bytes=card_bytes(args),
        network_name=_or(args.network, ""),
    )
    noted_cluster(name, cluster)
    _refuse_other_memory(args, cluster.device)
    if args.host_memory is None:
        return cluster
    given = msgspec.structs.replace(cluster, host_ram_bytes=args.host_memory)
    return check_cluster(given)


def _refuse_other_memory(args: argparse.Namespace, device: Device) -> None:
    """Refuse what is about a second memory, where a GPU's is the host's own.

    Raises:
        InputError: Something is to be moved to the host, or the host's size is given.
    """
    if not has_one_memory(device.name):
        return
    off = {"offload": defaults.OFFLOAD, "reference": None, "host_memory": None}
    for name, usual_value in off.items():
        given = getattr(args, name, None)
        if given in {None, usual_value} or (name == "reference" and given != "offloaded"):
            continue
        flag = f"--{name.replace('_', '-')}"
        if name != "host_memory":
            flag += f" {given}"
        fix = f"{flag.partition(' ')[0]} {usual_value}" if usual_value else f"no {flag}"
        raise InputError(
            f"{flag} is about a memory that {device.name} does not have: GPU and host share one, "
            f"and what a host holds is taken from the GPU; use {fix}",
            nearest={name: usual_value},
        )


def card_bytes(args: argparse.Namespace) -> int | None:
    """Return what programs have of each card by ``--card-memory``; None: it was not given.

    Of a label they have the share that they have of the same card's usual label.
    """
    given: int | None = args.card_memory
    if not isinstance(given, Labelled):
        return given
    return labelled_bytes(split_counts(_or(args.gpus, defaults.GPUS)).gpu, given)


def noted_cluster(typed: str, cluster: Cluster) -> Cluster:
    """Return a cluster as it is; where its name was typed in another way, say which was taken."""
    if split_counts(typed).gpu != cluster.name:
        _note_once(
            f"--gpus {spelled(cluster)} is taken for {typed!r} ({cluster.device.description})"
        )
    return cluster


def gpu_from(typed: str) -> str:
    """Resolve the name of one GPU; where it was typed in another way, say which was taken."""
    gpu = check_gpu(typed)
    if typed.strip().lower() != gpu:
        _note_once(f"{gpu} is taken for {typed.strip()!r}")
    return gpu


def _note_once(text: str) -> None:
    if f"brimful: {text}" not in noted():
        note(f"brimful: {text}")


def job_from(
    args: argparse.Namespace,
    devices: Sequence[Device] | None = None,
    model: ModelSpec | None = None,
) -> Job:
    """Resolve the job flags, with the defaults' table for what is not given.

    Args:
        args: The flags.
        devices: What may run it, where ``--gpus`` does not say.
        model: What is trained, where its name was resolved already.

    Raises:
        InputError: Nothing is to be trained.
        UnsupportedError: No device has what the recipe needs.
    """
    if args.task == INFERENCE:
        raise InputError(
            f"--task {INFERENCE} trains nothing; brimful estimate and brimful simulate take it"
        )
    refuse_elsewhere(args)
    model = model_from(args) if model is None else model
    seq_len = _or(args.seq_len, defaults.seq_len(model))
    num_devices = count_devices(_or(args.gpus, defaults.GPUS))
    each = _or(args.micro_batch, defaults.MICRO_BATCH)
    largest = max(each) if isinstance(each, list) else each
    global_batch = _or(args.global_batch, max(1, num_devices) * largest)
    task: Task = _or(args.task, default_task(model))
    rows = 2 if task == PREFERENCE else 1
    num_steps = _num_steps(args, model, seq_len * global_batch * rows)
    where = [cluster_from(args).device] if devices is None else devices
    precision = usual.precision_from(args, where)
    optimizer: Optimizer = _or(args.optimizer, defaults.OPTIMIZER)
    method: Method = _or(args.method, defaults.METHOD)
    job = check_job(
        Job(
            model=for_task(model, task),
            weights=args.weights,
            task=task,
            method=method,
            adapter=_adapter_from(args, method, precision),
            precision=precision,
            loss_scale=_loss_scale_from(args, precision),
            optimizer=optimizer,
            beta1=_or(args.beta1, defaults.beta1(optimizer)),
            beta2=_or(args.beta2, defaults.BETAS[1]),
            epsilon=_or(args.epsilon, defaults.epsilon(precision)),
            seq_len=seq_len,
            packing=_or(args.packing, PACKINGS[task][0]),
            global_batch=global_batch,
            num_steps=num_steps,
            learning_rate=_or(args.learning_rate, defaults.LEARNING_RATE),
            schedule=_or(args.schedule, defaults.SCHEDULE),
            warmup_steps=_or(args.warmup_steps, defaults.warmup_steps(num_steps)),
            weight_decay=_or(args.weight_decay, defaults.WEIGHT_DECAY),
            clip=_or(args.clip, defaults.CLIP),
            seed=_or(args.seed, defaults.SEED),
            preference=_preference_from(args, task),
            keep_fp32=_names(args.keep_fp32),
            router_aux_loss=_or(args.router_aux_loss, 0.0),
            router_z_loss=_or(args.router_z_loss, 0.0),
            allow=_allowed(args.allow),
            quantization=_quantization_from(args, method),
        )
    )
    if job.adapter is not None:
        check_targets(job.model, job.adapter.targets)
    return job if len(where) != 1 else check_precision(job, usual.place_of(where[0]))


def model_from(args: argparse.Namespace) -> ModelSpec:
    """Resolve the model, with the rows that were added to it."""
    model = load_model(args.model)
    if why := taken_words(args.model, model.name):
        _note_once(why)
    if args.vocab_size is not None:
        model = with_vocab_size(model, args.vocab_size)
    if args.max_positions is not None:
        model = with_positions(model, args.max_positions)
    return model if args.num_labels is None else with_num_labels(model, args.num_labels)


def _adapter_from(args: argparse.Namespace, method: Method, precision: Precision) -> Adapter | None:
    if method in WHOLE:
        _refuse_without(args, _ADAPTER, f"--method {method}", "lora, dora or qlora")
        return None
    rank = _or(args.lora_rank, defaults.LORA_RANK)
    return Adapter(
        rank=rank,
        alpha=_or(args.lora_alpha, defaults.LORA_ALPHA_PER_RANK * rank),
        targets=_names(args.lora_targets) or defaults.LORA_TARGETS,
        trained_modules=_names(args.trained_modules),
        dtype=_or(args.adapter_dtype, "same"),
        base=_or(args.base, defaults.base(method, precision)),
        upcast=_or(args.upcast, "none"),
        input_requires_grad=bool(args.input_requires_grad),
    )


def _quantization_from(args: argparse.Namespace, method: Method) -> Quantization | None:
    if method != QAT:
        _refuse_without(args, _QUANTIZATION, f"--method {method}", f"--method {QAT}")
        return None
    scheme: Scheme = _or(args.qat_scheme, defaults.QAT_SCHEME)
    return Quantization(scheme=scheme, group_size=_or(args.qat_group_size, default_group(scheme)))


def _loss_scale_from(args: argparse.Namespace, precision: Precision) -> LossScale | None:
    if precision not in SCALED:
        scaled = " or ".join(sorted(SCALED))
        _refuse_without(args, _LOSS_SCALE, f"--precision {precision}", scaled)
        return None
    given = {name: getattr(args, name) for name in _LOSS_SCALE}
    changes = {name: value for name, value in given.items() if value is not None}
    return msgspec.structs.replace(defaults.LOSS_SCALE, **changes)


def _preference_from(args: argparse.Namespace, task: Task) -> Preference | None:
    if task != PREFERENCE:
        _refuse_without(args, _PREFERENCE, f"--task {task}", f"--task {PREFERENCE}")
        return None
    default = defaults.PREFERENCE
    return Preference(
        beta=_or(args.dpo_beta, default.beta),
        label_smoothing=_or(args.label_smoothing, default.label_smoothing),
    )


def _refuse_without(
    args: argparse.Namespace, names: tuple[str, ...], setting: str, fix: str
) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise InputError(
                f"--{name.replace('_', '-')} {getattr(args, name)} has no meaning with {setting}; "
                f"use {fix}, or leave it out"
            )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _allowed(text: str | None) -> tuple[Allowed, ...]:
    read = choice("allow", get_args(Allowed))
    return tuple(cast("Allowed", read(name)) for name in _names(text))


def _num_steps(args: argparse.Namespace, model: ModelSpec, tokens_per_step: int) -> int:
    if args.tokens is None:
        return int(_or(args.steps, defaults.NUM_STEPS))
    if args.steps is not None:
        raise InputError(
            f"--steps {args.steps} and --tokens {args.tokens} both say how long; give one"
        )
    if tokens_per_step < 1:
        raise InputError(
            f"--seq-len x --global-batch is {tokens_per_step} for {model.name}; give 1 or more"
        )
    return -(-int(args.tokens) // tokens_per_step)


def refuse_other_strategy(args: argparse.Namespace, strategy: Strategy) -> None:
    """Refuse strategy flags that say something else than a run began with.

    Raises:
        InputError: Names the first, and both values.
    """
    for name in STRATEGY:
        given, began = getattr(args, name), getattr(strategy, name)
        if given is not None and given != began:
            raise InputError(
                f"--{name.replace('_', '-')} {given} is not what the run began with, {began}; "
                f"leave it out to go on, or choose another --out"
            )


def stage_of_zero(text: str) -> Zero:
    """Read a ZeRO stage.

    Raises:
        InputError: It is none.
    """
    if text not in {"0", "1", "2", "3"}:
        raise InputError(f"--zero {text} is no stage of ZeRO; give 0, 1, 2 or 3")
    return cast("Zero", int(text))


def _degrees_from(args: argparse.Namespace, num_devices: int, zero: Zero) -> dict[str, Any]:
    """Resolve how devices are spread over replicas and shards; all in one group by default."""
    if zero == 0:
        replicate, shard = _or(args.dp_replicate, num_devices), _or(args.dp_shard, 1)
    elif args.dp_replicate is None and args.dp_shard is not None:
        shard = args.dp_shard
        replicate = max(1, num_devices // shard)
    else:
        replicate = _or(args.dp_replicate, 1)
        shard = _or(args.dp_shard, max(1, num_devices // replicate))
    return {"zero": zero, "dp_replicate": replicate, "dp_shard": shard}


def _pipeline_from(args: argparse.Namespace) -> dict[str, Any]:
    schedule: PipelineSchedule = _or(args.pp_schedule, defaults.PP_SCHEDULE)
    several = 1 if schedule in ONE_STAGE else 2
    return {
        "pp_schedule": schedule,
        "stages_per_device": _or(args.stages_per_device, several),
        "stage_blocks": _or(args.stage_blocks, ()),
    }


def _usual_micro_batch(job: Job) -> int:
    """Return the micro-batch of a strategy that names none: all where parts would change a loss."""
    is_free = exactness(job, "micro_batch", defaults.MICRO_BATCH).how != "changes"
    return defaults.MICRO_BATCH if is_free else job.global_batch


def strategy_from(args: argparse.Namespace, job: Job, cluster: Cluster) -> Strategy:
    """Resolve the strategy flags, with the defaults' table for what is not given."""
    attention = usual.attention_from(args, job, cluster.device)
    each = max(1, cluster.num_devices // (_or(args.tp, 1) * _or(args.pp, 1)))

    def make(zero: Zero) -> Strategy:
        strategy = _strategy(args, job, attention, _degrees_from(args, each, zero))
        return check_strategy(job, placed(strategy, cluster.num_devices))

    return usual.strategy_that_runs(args, each, make)


def _strategy(
    args: argparse.Namespace, job: Job, attention: Attention, degrees: dict[str, Any]
) -> Strategy:
    engine, pp = _or(args.engine, defaults.ENGINE), _or(args.pp, 1)
    return Strategy(
        micro_batch=_or(args.micro_batch, _usual_micro_batch(job)),
        activation_checkpointing=_or(
            args.activation_checkpointing, defaults.ACTIVATION_CHECKPOINTING
        ),
        loss_chunks=_or(args.loss_chunks, defaults.LOSS_CHUNKS),
        attention=attention,
        accumulate=_or(args.accumulate, default_accumulate(engine, degrees["zero"], pp)),
        tp=_or(args.tp, 1),
        ep=_or(args.ep, 1),
        pp=pp,
        **_pipeline_from(args),
        reference=_or(args.reference, default_reference(job)),
        engine=engine,
        offload=_or(args.offload, defaults.OFFLOAD),
        optimizer_in_backward=bool(args.optimizer_in_backward),
        compile=_or(args.compile, defaults.COMPILE),
        fused_kernels=_or(args.fused_kernels, defaults.FUSED_KERNELS),
        allocator=_or(args.allocator, defaults.ALLOCATOR),
        **degrees,
    )
