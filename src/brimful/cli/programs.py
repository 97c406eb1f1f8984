"""``--from`` of verbs that take no file there: a known program is run as it is, or predicted."""

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from brimful.cli import parsing, resolved
from brimful.cli.assumed import limits_json, money_facts, prices_from
from brimful.cli.limits import in_dollars, kept_of, limit_facts, unchecked_facts
from brimful.cli.output import BAD_INPUT, DOES_NOT_FIT, FITS, show, show_facts, show_json, tell
from brimful.errors import InputError, NotInstalledError, UnsupportedError
from brimful.files.writing import is_there
from brimful.hardware.devices import cards
from brimful.hardware.names import split_counts
from brimful.programs.base import Rank
from brimful.show.summary import Fact
from brimful.text.escaping import shell_words
from brimful.text.terminal import say

if TYPE_CHECKING:
    from brimful.cost.money import Cost
    from brimful.programs.base import Program, RankPeak
    from brimful.programs.formulas import Prediction
    from brimful.programs.planned import Planned
    from brimful.show.answer import Answer

SCHEMA = "brimful.program/1"
_DATA = "--data-path DATA --tokenizer-type HuggingFaceTokenizer --tokenizer-model TOKENIZER"
_DEGREES = ("tp", "pp", "cp", "ep", "micro_batch")
_NOT_MEGATRON = (
    "zero", "dp_shard", "dp_replicate", "activation_checkpointing", "loss_chunks", "attention",
    "fused_kernels", "offload", "optimizer_in_backward", "compile", "fsdp", "pp_schedule", "source",
)  # fmt: skip
PLANNED_SCHEMA = "brimful.megatron_plan/1"
PREDICTED_SCHEMA = "brimful.program_prediction/1"
_HELP = (
    "a program of another framework by its command line, run as it is: 'pretrain_gpt.py "
    "--tensor-model-parallel-size 8 ...' of Megatron-LM, a shell script that starts it, or the "
    "YAML of its arguments, or NeMo's; or a file that plan --from reads"
)
_OF_SETTINGS = frozenset({".json", ".toml", ".yaml", ".yml"})
_MOST_LETTERS = 60
"""Of a command line, where what a script starts is named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--from`` and what belongs to it."""
    add = parser.add_argument_group("a program of another framework").add_argument
    add("--from", dest="source", metavar="COMMAND|YAML", default=None, type=as_started, help=_HELP)
    world = "processes, where the command line does not say; default: one node, or what it needs"
    add("--world-size", metavar="N", type=parsing.whole("--world-size"), help=world)


def as_started(text: str) -> str:
    """Return the command line that a script of a shell starts; any other text as it is."""
    from brimful.programs.shell_scripts import call_of

    if (call := call_of(text)) is None:
        return text
    from brimful.programs.settings import read_script

    found = read_script(call)
    line = textwrap.shorten(found.line, _MOST_LETTERS, placeholder=" ...")
    for words in (f"{text} is read as what it starts: {line}", *found.notes):
        parsing.note_once(words)
    return found.line


def file_or_refusal(verb: str) -> Callable[[str], Path]:
    """Return the parser of ``--from FILE`` that refuses a program in a sentence."""
    read = parsing.path("--from")

    def parse(given: str) -> Path:
        from brimful.programs.reading import holds_arguments
        from brimful.programs.settings import has_settings, script_of, settings_file

        text = as_started(given)
        if has_settings(text):
            if verb == "plan" and (file := settings_file(text)) is not None:
                return file
            raise UnsupportedError(
                f"{verb} takes no program of another framework: brimful estimate --from '...' "
                f"predicts Megatron-LM's, brimful simulate --from '...' runs any on a pretend GPU"
            )
        if holds_arguments(text):
            raise UnsupportedError(
                f"--from {text} says a layout of Megatron-LM, which {verb} does not change: "
                f"brimful estimate --from {text} predicts it and names what would fit; brimful "
                f"{verb} MODEL --for megatron searches layouts"
            )
        if script := script_of(text):
            raise _of_no_flags(text, script)
        return read(text)

    return parse


def _of_no_flags(text: str, script: str) -> InputError:
    return InputError(
        f"--from {text}: {script} has none of the flags that are read as settings, those of "
        f"transformers' TrainingArguments; brimful pretend -- {script} runs it as it is"
    )


def check_alone(args: argparse.Namespace, verb: str) -> None:
    """Refuse what stands beside a program that says it itself."""
    if args.source is None and args.model is None:
        raise InputError(
            f"{verb} was given no MODEL; give a name (brimful models), a plan, or --from a program"
        )
    if args.source is None and args.world_size is not None:
        raise InputError(f"--world-size {args.world_size} belongs to --from; give --gpus instead")
    if args.source is not None and args.model is not None and not _has_settings(args):
        raise InputError(f"{args.model} stands beside --from, which names the model; leave it out")


def run_estimate(args: argparse.Namespace) -> int:
    """Print what each kind of process of a program takes, by formula."""
    from brimful.cost.assumptions import assumptions_for
    from brimful.hardware.gpus import device_named
    from brimful.programs.formulas import Machines, predict_program, run_cost
    from brimful.programs.reading import is_program
    from brimful.programs.settings import script_of
    from brimful.programs.ways_out import ways_out
    from brimful.show.answer import Answer
    from brimful.show.programs import predicted_summary, verdict_of, way_facts
    from brimful.units import shown_in

    in_dollars(args)
    if _has_settings(args):
        is_file = is_there(str(args.source))
        return _plan_instead(args, "" if is_file else "it has no formula of its own")
    if (script := script_of(str(args.source))) and not is_program(str(args.source)):
        raise _of_no_flags(str(args.source), script)
    gpu, num = _gpus(args)
    counted = split_counts(args.gpus or gpu)
    machines = Machines(gpu, network=args.network or "")
    if counted.num_nodes > 1:
        machines = machines._replace(per_node=counted.per_node)
    found = predict_program(str(args.source), num, machines)
    device = device_named(gpu)
    verdict = verdict_of(found)
    fits = verdict == "FITS"
    ways = ways_out(str(args.source), num, machines) if verdict == "NO" else ()
    step_s = ways[0].predicted_step_s if ways else found.predicted_step_s
    price = prices_from(args).gpus.get(device.name)
    cost = run_cost(found, step_s, _num_steps(args, found), price)
    if args.json:
        most = max(rank.predicted_peak_allocated_bytes for rank in found.ranks)
        content = msgspec.to_builtins(found)
        show_json(
            {
                "schema": PREDICTED_SCHEMA,
                "statement": f"{most} bytes allocated at the peak, predicted",
                **content,
                "predicted_peak_allocated_bytes": most,
                "fits": fits,
                "ways_out": msgspec.to_builtins(ways),
                **_limits_json(args, cost),
            }
        )
    rests = "by formula, of Megatron-LM 0.20 and Transformer Engine 2.20"
    following = Fact("next", "brimful simulate --from '...' runs the program itself, if installed")

    def answer() -> Answer:
        with shown_in(args.currency):
            limits = _limit_facts(args, cost, assumptions_for(device).time_high)
            summary = predicted_summary(found, device.description, cost, limits)
            below = way_facts(ways, cost, limits)
        if verdict == "NO" and not ways:
            below = unchecked_facts(args, "nothing near it was found that fits")
        return Answer(summary, below if ways else (*below, following), (rests,))

    tell(args, answer)
    if not args.json:
        _show_unread(str(args.source))
    return FITS if fits else DOES_NOT_FIT


def _num_steps(args: argparse.Namespace, found: "Prediction") -> int | None:
    """Return how many steps a run has: those that were typed, or the program's own."""
    if args.steps is not None:
        return int(args.steps)
    return found.num_steps if args.tokens is None else -(-int(args.tokens) // found.tokens_per_step)


def _limit_facts(args: argparse.Namespace, cost: "Cost | None", slow: float) -> "Sequence[Fact]":
    """Say whether a run keeps to what was asked of it; where it has no length, what is missing."""
    if cost is None:
        return unchecked_facts(args, "nobody says how long the run is; add --tokens")
    # A market is not searched for a program that another framework runs.
    return limit_facts(args, cost, is_length_given=True, slow=slow, is_shopped=False)


def _limits_json(args: argparse.Namespace, cost: "Cost | None") -> dict[str, object]:
    kept = None if cost is None else kept_of(args, cost, is_length_given=True)
    return {"cost": cost, **({} if kept is None else {"limits": kept._asdict()})}


def _show_unread(source: str) -> None:
    """Say what of a file is not read, as of other programs' files."""
    from brimful.programs.reading import read_command
    from brimful.report.tables import line_of

    if unread := read_command(source).unread:
        show(line_of(f"{source}: not read: {', '.join(unread)}"))


def run_plan(args: argparse.Namespace) -> int:
    """Find the fastest layout of Megatron-LM that fits, and print it."""
    from brimful.cli.progress import Progress
    from brimful.files.writing import write_text
    from brimful.programs.base import as_mapping, flags_of
    from brimful.programs.megatron import SCRIPT
    from brimful.programs.planned import plan_megatron
    from brimful.show.answer import Answer
    from brimful.show.programs import freed_fact, planned_summary
    from brimful.text.escaping import comments, yaml_text

    in_dollars(args)
    pins = _pins(args)
    args.cp = None  # our own loop has none
    if args.precision is None:
        args.precision = "bf16-master"  # what --bf16 of Megatron-LM is
    job, cluster = resolved.job_from(args), resolved.cluster_from(args)
    with Progress("looking at layouts", quiet=args.json):
        found = plan_megatron(job, cluster, pins)
    nodes = ("--nnodes", str(cluster.num_nodes)) if cluster.num_nodes > 1 else ()
    script = ("torchrun", *nodes, "--nproc-per-node", str(cluster.devices_per_node), SCRIPT)
    lines = f"{shell_words(script)} {shell_words(found.arguments)} {_DATA}"
    if args.output is not None:
        content = {"MODEL_ARGS": as_mapping(flags_of(found.arguments, SCRIPT))}
        head = comments([f"brimful plan {job.model.name} --for megatron: arguments of {SCRIPT}"])
        write_text(args.output, "\n".join([*head, yaml_text(content)]))
    if args.json:
        most = found.predicted_peak_allocated_bytes
        statement = f"{most} bytes allocated at the peak, predicted"
        content = msgspec.to_builtins(found)
        kept = limits_json(args, job, cluster, found.predicted_step_s)
        told = {"schema": PLANNED_SCHEMA, "statement": statement, **content, "command": lines}
        show_json({**told, **kept})
    freed = plan_megatron(job, cluster, {}) if pins and not found.fits else None
    ways = (freed_fact(freed, pins),) if freed is not None and freed.fits else ()
    facts = (*ways, *_unsaid(found), *_following(args))
    run = money_facts(args, job, cluster, found.predicted_step_s)
    tell(args, lambda: Answer(planned_summary(job, cluster, found, run), facts, (lines,)))
    return FITS if found.fits else DOES_NOT_FIT


def _unsaid(found: "Planned") -> "tuple[Fact, ...]":
    """Say which arguments of a model nobody knows here, and what of it none says."""
    told = (("give too", found.not_known), ("left out", found.left_out))
    return tuple(Fact(label, "; ".join(words)) for label, words in told if words)


def _following(args: argparse.Namespace) -> "tuple[Fact, ...]":
    """Say where a layout was written, and what to do with it."""
    gpus = f" --gpus {args.gpus}" if args.gpus else ""
    if args.output is None:
        words = "-v prints the command line; -o FILE writes its arguments for estimate --from FILE"
        return (Fact("next", words),)
    return (
        Fact("written", f"{args.output}, but the data's arguments; -v: the command"),
        Fact("next", f"brimful simulate --from {args.output}{gpus}"),
    )


def _pins(args: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """Return the degrees that were typed."""
    typed = {name: value for name, value in vars(args).items() if value is not None}
    other = next((name for name in _NOT_MEGATRON if typed.get(name)), None)
    if other is not None:
        raise InputError(
            f"--{other.replace('_', '-')} is nothing that plan --for megatron searches, which are "
            f"{', '.join(_DEGREES)} and what is recomputed; leave it out"
        )
    found = {name: typed[name] for name in _DEGREES if name in typed}
    return {n: tuple(x) if isinstance(x, list) else (x,) for n, x in found.items()}


def run_simulate(args: argparse.Namespace) -> int:
    """Run a program on the pretend GPU and print what each kind of process takes."""
    from brimful.programs.reading import read_program

    gpu, num = _gpus(args)
    if is_there(str(args.source)) and _has_settings(args):
        return _plan_instead(args, f"{args.source} names no command to run")
    try:
        program = read_program(str(args.source), num)
    except NotInstalledError as error:
        if _has_settings(args):
            runs = ", which runs it itself" if "installed" in str(error) else ""
            return _plan_instead(args, f"{error}{runs}")
        if args.json:
            raise
        return _estimate_instead(args, error)
    return show_run(args, program, gpu)


def _estimate_instead(args: argparse.Namespace, error: NotInstalledError) -> int:
    """Say what is not installed, and what its formulas say of it."""
    from brimful.cli.main import as_verb

    say(f"brimful: {error}", file=sys.stderr, flush=True)
    show_facts(Fact("instead", "predicted by formulas, as brimful estimate does:"))
    run_estimate(as_verb("estimate", args))
    return BAD_INPUT


def _has_settings(args: argparse.Namespace) -> bool:
    """Whether settings of a program can be read: off its command line, or off their file."""
    from brimful.programs.reading import holds_arguments
    from brimful.programs.settings import settings_file

    text = str(args.source)
    if is_there(text) and not Path(text).is_dir() and Path(text).suffix in _OF_SETTINGS:
        return not holds_arguments(text)
    return settings_file(text) is not None


def _plan_instead(args: argparse.Namespace, why: str) -> int:
    """Plan what a command line says by our own loop, with all that was typed beside it."""
    from brimful.cli.main import run_verb

    planned, left_out = _as_planned(args)
    unused = f", without {' '.join(left_out)}" if left_out else ""
    more = f"here its settings are planned in Brimful's own loop{unused}"
    if why:
        say(f"brimful: {why}; {more}", file=sys.stderr, flush=True)
    return run_verb("plan", planned)


def _as_planned(args: argparse.Namespace) -> tuple[argparse.Namespace, list[str]]:
    """Return flags as those of ``plan``, and what was typed that ``plan`` does not have."""
    from brimful.cli.main import parser_of

    planned = parser_of("plan").parse_args([])
    given = {**vars(args), "source": file_or_refusal("plan")(str(args.source))}
    given["gpus"] = _of_world(args)
    left_out = []
    for name, value in given.items():
        if name == "command" or (hasattr(planned, name) and name != "output"):
            setattr(planned, name, value)
        elif value not in (None, False, ()) and name != "world_size":
            left_out.append(f"--{name.replace('_', '-')}")
    return planned, left_out


def _of_world(args: argparse.Namespace) -> str | None:
    """Return the GPUs that were typed, as many as there are processes; None: nobody said which."""
    if args.world_size is None:
        return None if args.gpus is None else str(args.gpus)
    gpu, _ = _gpus(args)
    counted = split_counts(args.gpus or gpu)
    if args.world_size == counted.num_nodes * counted.per_node:
        return str(args.gpus or gpu)
    nodes, rest = divmod(args.world_size, counted.per_node)
    is_of_nodes = counted.per_node > 1 and nodes > 1 and not rest
    return f"{nodes}x{counted.per_node}x{gpu}" if is_of_nodes else f"{args.world_size}x{gpu}"


def show_run(args: argparse.Namespace, asked: "Program", gpu: str) -> int:
    """Run a program and print what each kind of process takes.

    ``gpu``: a card of ``brimful gpus``.
    """
    from brimful.cli.progress import Progress
    from brimful.programs.running import run_program

    program = _of_rank(asked, args.rank)
    num_ranks = len(program.ranks)
    with Progress(f"running {num_ranks} of its processes", quiet=args.json) as progress:
        progress.update("the first steps", 0.0)
        ended = count(1)
        peaks = run_program(
            program,
            gpu=gpu,
            allocator=args.allocator or "",
            done=lambda peak: progress.update(f"rank {peak.rank} is done", next(ended) / num_ranks),
        )
    if args.json:
        show_json(
            {
                "schema": SCHEMA,
                "statement": _statement(peaks),
                "program": msgspec.structs.asdict(program),
                "ranks": [msgspec.structs.asdict(peak) for peak in peaks],
                "simulated_peak_allocated_bytes": max(
                    peak.simulated_peak_allocated_bytes for peak in peaks
                ),
                "fits": all(peak.fits for peak in peaks),
            }
        )
    tell(args, lambda: _answer(program, peaks, gpu))
    return FITS if all(peak.fits for peak in peaks) else DOES_NOT_FIT


def _statement(peaks: "tuple[RankPeak, ...]") -> str:
    most = max(peak.simulated_peak_allocated_bytes for peak in peaks)
    return f"{most} bytes allocated at the peak, simulated"


def _gpus(args: argparse.Namespace) -> tuple[str, int | None]:
    """Return the card, and how many there are where a flag says."""
    from brimful.cli import defaults

    if args.gpus is None:
        return defaults.PRETEND_GPU, args.world_size
    counted = split_counts(args.gpus)
    num = counted.num_nodes * counted.per_node
    is_counted = counted.gpu != args.gpus.strip().lower()
    return counted.gpu, args.world_size or (num if is_counted else None)


def _of_rank(program: "Program", rank: int | None) -> "Program":
    if rank is None:
        return program
    if rank >= program.world_size:
        raise InputError(
            f"--rank {rank} is not in a world of {program.world_size}; use 0 to "
            f"{program.world_size - 1}"
        )
    return msgspec.structs.replace(program, ranks=(Rank(rank, "as asked for"),))


def _answer(program: "Program", peaks: "tuple[RankPeak, ...]", gpu: str) -> "Answer":
    from brimful.show.answer import Answer
    from brimful.show.programs import programs_summary

    card = next((each.description for each in cards() if each.name == gpu), gpu)
    rests = dict.fromkeys(line for peak in peaks for line in peak.assumptions)
    command = shell_words(program.argv)
    return Answer(
        programs_summary(program, peaks, card),
        (Fact("next", "-v prints what was run and what it rests on; --json has it whole"),),
        (command, "", *rests),
    )
