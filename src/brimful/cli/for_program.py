"""``--for``: the program that will run a plan, among whose settings it is searched."""

import argparse
from typing import TYPE_CHECKING, Any

import msgspec

from brimful.cli import engine_words, parsing, resolved, usual
from brimful.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from brimful.export.told import Asking
    from brimful.show.summary import Fact
    from brimful.simulate.proof import Simulates
    from brimful.values.plan import Plan

OWN = "brimful"
DEEPSPEED = "deepspeed"
MEGATRON = "megatron"
"""Of which layouts are searched by formulas of its own (``programs.run_plan``)."""
PROGRAMS = (
    OWN,
    "hf-trainer",
    "trl",
    "axolotl",
    "llama-factory",
    "accelerate",
    "torchtitan",
    DEEPSPEED,
    MEGATRON,
)
"""This one, and the targets of ``export`` that are programs of others."""


_READ_ALONE = "its settings are read: brimful plan --from FILE.yaml plans what they say"
_NOT_PLANNED = {
    "unsloth": "the nearest is --for trl, whose trainer it takes; its own kernels take less",
    **dict.fromkeys(("torchtune", "nanotron", "litgpt"), _READ_ALONE),
}
_RECIPES = ("bf16-master", "bf16")
"""What programs of others train in beside ours, the exacter first."""
_OWN_RECIPE = {DEEPSPEED: "bf16-master"}
"""What a program's own switch for 16 bits means, where that is not the usual recipe here."""


def add_for(parser: argparse.ArgumentParser, words: str) -> None:
    """Add ``--for``."""
    parser.add_argument(
        "--for",
        dest="program",
        metavar="PROGRAM",
        type=_program,
        default=None,
        help=f"{words}: {', '.join(PROGRAMS)}; default {OWN}",
    )


def _program(text: str) -> str:
    """Read a program; of one that has no exporter, say what is there instead."""
    for name, words in _NOT_PLANNED.items():
        if text.lower().startswith(name):
            raise InputError(f"--for {text} is not planned by this version; {words}")
    return parsing.choice("program", PROGRAMS)(text)


def is_other(args: argparse.Namespace) -> bool:
    """Whether another program than this one is to run the plan."""
    return getattr(args, "program", None) not in {None, OWN}


def settle(args: argparse.Namespace) -> None:
    """Take what the program does where nobody typed it: its recipe, and DeepSpeed where it shards.

    Our own loop has no adapters on that engine; the program's script has.
    """
    if not is_other(args) or resolved.is_plan(args.model):
        return
    _settle_precision(args)
    hands_over = args.program == DEEPSPEED or args.zero == 1
    if hands_over and args.engine is None and args.method in {None, "full"}:
        args.engine = DEEPSPEED


def narrow(args: argparse.Namespace) -> None:
    """Fix the flags of a search to what the program can be told.

    Raises UnsupportedError: the job is not.
    """
    if not is_other(args):
        _narrow_to_source(args)
        return
    from brimful.export.told import check_told, fields, narrowed, why_untold

    _settle_precision(args)
    asking = _asking(args)
    check_told(asking)
    said: frozenset[str] = getattr(
        args, "said_by_file", frozenset()
    )  # which may know more than is exported
    for field in fields(asking):
        given = getattr(args, field)
        if field in said:
            continue
        if field == "dp_replicate" and args.zero == 0:  # copies alone, which all programs have
            continue
        for value in given if isinstance(given, list) else [given]:
            if value is not None and (why := why_untold(asking, field, value)):
                flag = field.replace("_", "-")
                raise InputError(
                    f"{args.program} cannot be told {why}; leave --{flag} out, or plan --for {OWN}"
                )
    for field, told in narrowed(asking).items():
        if getattr(args, field) is None:
            _fix(args, field, told)


def take_told(args: argparse.Namespace) -> None:
    """Fix what the program does whatever it is told, where nobody typed it: one strategy is run."""
    if not is_other(args) or resolved.is_plan(args.model):
        return
    from brimful.export.told import narrowed

    for field, told in narrowed(_asking(args)).items():
        if getattr(args, field) is None and not isinstance(told, list):
            _fix(args, field, told)


def _narrow_to_source(args: argparse.Namespace) -> None:
    """Leave out what the program whose settings were read does not do, where nobody typed it.

    A loss in chunks, above all: what fits by it alone does not fit there. Choices among several
    values stay the planner's, and nothing is refused; ``--for brimful`` leaves all of them to it.
    """
    source = getattr(args, "source", None)
    if source is None or args.program is not None:
        return
    from brimful.export import TARGETS
    from brimful.export.read_source import program_of as whose_file
    from brimful.export.told import narrowed

    name = whose_file(source)
    if name not in TARGETS:  # its reader says all that it does
        return
    theirs = argparse.Namespace(**{**vars(args), "program": name})
    told = {"loss_chunks": 1} if _refusal(theirs) else narrowed(_asking(theirs))
    for field, value in told.items():
        if getattr(args, field) is None and not isinstance(value, list):
            _fix(args, field, value)


def narrow_wholly(args: argparse.Namespace, plan: "Plan") -> None:
    """Leave to a search what the keys of a file can say, choices among several values too.

    ``args``: the flags, of which those are left open that are searched. Raises InputError: its
    numbers do not go together. Raises UnsupportedError: the job is not planned by this version.
    """
    from brimful.export.changed_keys import sayable, spelled_by
    from brimful.export.read_source import program_of as whose_file
    from brimful.export.told import fields, narrowed, plainer

    asking = _asking(argparse.Namespace(**{**vars(args), "program": whose_file(args.source)}))
    told: dict[str, Any] = {}
    for job in (asking.job, plainer(asking.job)):
        like = msgspec.structs.replace(plan, job=job, strategy=asking.plainest)
        every = spelled_by(args.source, like)
        if every:
            each = [narrowed(asking._replace(job=job, to=target)) for target in every]
            told = _either(each) | ({"loss_chunks": 1} if job != asking.job else {})
            break
    else:
        told = {"loss_chunks": 1} | sayable(args.source, plan, fields(asking))
    for field, value in told.items():
        if getattr(args, field) is None:
            one = value[0] if isinstance(value, list) and len(value) == 1 else value
            _fix(args, field, one)


def _either(narrowed: "Sequence[Mapping[str, Any]]") -> dict[str, list[Any]]:
    """Return what fields stay within where one of several exporters is enough."""
    first, *others = narrowed
    found = {field: value for field, value in first.items() if all(field in one for one in others)}
    for field in list(found):
        every = (one[field] for one in narrowed)
        lists = (value if isinstance(value, list) else [value] for value in every)
        found[field] = list(dict.fromkeys(value for each in lists for value in each))
    return found


def _fix(args: argparse.Namespace, field: str, value: object) -> None:
    """Fix a flag that nobody typed, and note that it was."""
    setattr(args, field, value)
    args.narrowed = (*fixed_fields(args), field)


def fixed_fields(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the flags that are fixed because a program is told nothing else."""
    return tuple(getattr(args, "narrowed", ()))


def whose(args: argparse.Namespace) -> str:
    """Return the program that a search is for; empty: this one."""
    if is_other(args):
        return str(args.program)
    if not fixed_fields(args):
        return ""
    from brimful.export.read_source import program_of as whose_file

    return whose_file(args.source)


def why_not_offloaded(args: argparse.Namespace) -> str:
    """Say why the program that a search is for keeps nothing on the host; empty: nobody said so."""
    if "offload" not in fixed_fields(args):
        return ""
    from brimful.export.told import why_untold
    from brimful.techniques.offload import OPTIMIZER

    theirs = argparse.Namespace(**{**vars(args), "program": whose(args), "offload": None})
    what, _, why = why_untold(_asking(theirs), "offload", OPTIMIZER).partition(": ")
    return why or f"not {what}"


def _settle_precision(args: argparse.Namespace) -> None:
    """Take a recipe that the program trains in, where none was typed and ours is none of its."""
    if args.precision is not None:
        return
    for recipe in (_OWN_RECIPE.get(args.program), *_RECIPES):
        tried = argparse.Namespace(**{**vars(args), "precision": recipe})
        if not _refusal(tried).startswith("precision="):
            args.precision = recipe
            return


def _refusal(args: argparse.Namespace) -> str:
    from brimful.export.told import check_told

    try:
        check_told(_asking(args))
    except UnsupportedError as error:
        return str(error)
    return ""


def _asking(args: argparse.Namespace) -> "Asking":
    from brimful.export.told import Asking
    from brimful.search.pins import Pins, pinned_strategy

    job, cluster = resolved.job_from(args), resolved.cluster_from(args)
    attention = usual.attention_from(args, job, cluster.device)
    fused = getattr(args, "fused_kernels", None)
    pins = Pins(micro_batch=1, activation_checkpointing="none", loss_chunks=1, fused_kernels=fused)
    plainest = pinned_strategy(pins, attention, cluster.num_devices)
    return Asking(args.program, job, cluster, plainest)


def simulates_as(args: argparse.Namespace, plan: "Plan") -> "Simulates | None":
    """Return what simulates as the program does; None: it is this one, or is not run here."""
    if not is_other(args) or why_not_run(args, plan):
        return None
    from brimful.export.programs import simulates_as as simulates

    settings = engine_words.settings_of(args)
    simulation: Simulates = simulates(args.program, settings)
    return simulation


def why_not_run(args: argparse.Namespace, plan: "Plan") -> str:
    """Say why the program itself is not simulated; empty: it is."""
    from brimful.export.programs import program_of

    try:
        program_of(args.program, plan)
    except (InputError, UnsupportedError) as error:
        return str(error)
    return ""


def program_facts(args: argparse.Namespace, plan: "Plan", *, is_proven: bool) -> "tuple[Fact, ...]":
    """Say whose numbers are told, beside which program."""
    from brimful.show.summary import Fact

    source = getattr(args, "source", None)
    if not is_other(args):
        if source is None:
            return ()
        from brimful.export import TARGETS
        from brimful.export.read_source import program_of as whose_file

        name = whose_file(source)
        whose = "" if args.program is None else ", of all that it can do"
        also = f"--for {name} plans for it" if name in TARGETS else ""
        also = engine_words.engine_words(args, plan) or also
        words = "; ".join(filter(None, (f"numbers are of Brimful's own loop{whose}", also)))
        if args.program is None:
            words = f"settings that {name} takes; {words}"
        return (Fact("program", words),)
    from brimful.export.programs import program_of

    why = why_not_run(args, plan)
    if why or not is_proven:
        words = (
            f"numbers are of Brimful's own loop told the same settings; {why or 'not simulated'}"
        )
        return (Fact("program", words),)
    name = program_of(args.program, plan).name
    return (Fact("program", f"simulated: {name} itself; predicted: Brimful's own loop"),)


def program_json(
    args: argparse.Namespace, plan: "Plan", *, is_proven: bool
) -> "dict[str, dict[str, object]]":
    """Return the same for JSON: of our own what DeepSpeed's engine takes, where a file runs it."""
    if not is_other(args):
        return engine_words.engine_json(args, plan)
    why = why_not_run(args, plan)
    is_run = is_proven and not why
    return {"program": {"name": args.program, "is_simulated": is_run, "why_not": why}}
