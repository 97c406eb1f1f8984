"""Launchers of several processes: what they start, read off their command lines.

``torchrun`` and ``accelerate launch`` are read by their own parsers, and Accelerate's own code says
what its processes find in their environment. DeepSpeed is not imported for its flags: it would
decide there and then that this machine has no GPU.

Source: ``torch/distributed/run.py``; ``commands/launch.py`` and ``utils/launch.py`` of Accelerate
1.15; ``launcher/runner.py`` and ``launch.py`` of DeepSpeed 0.19.8.
"""

import argparse
import contextlib
import importlib.util
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from brimful.errors import InputError
from brimful.pretend.replacing import replaced

MODULE_FLAG = "-m"
_A_NODE = 8
"""GPUs that Accelerate finds where it looks for some, which takes several processes for granted."""
_FINDS = (
    "accelerate launch starts a process for each GPU that it finds, and is taken to find one: "
    "--num_processes N behind it says more"
)
_SWITCHES = (
    "--module", "--no_python", "--no_local_rank", "--no_ssh", "--no_ssh_check", "--force_multi",
    "--save_pid", "--elastic_training", "--bind_cores_to_rank", "-q", "--quiet",
)  # fmt: skip
_VALUES = (
    "--master_port", "--master_addr", "--node_rank", "--launcher", "--launcher_args",
    "--enable_each_rank_log", "--autotuning", "--min_elastic_nodes", "--max_elastic_nodes",
    "--bind_core_list", "--ssh_port", "--venv_script", "--log_level", "--hostfile", "-H",
    "--exclude", "-e",
)  # fmt: skip
"""Flags of DeepSpeed's launcher."""


class UncountedError(InputError):
    """A launcher that starts as many processes as it finds GPUs, and finds none here.

    Attributes:
        program: What it starts.
    """

    def __init__(self, message: str, program: Sequence[str]) -> None:
        """Keep what is started."""
        super().__init__(message)
        self.program = list(program)


class Launched(NamedTuple):
    """What a command line runs.

    Attributes:
        program: ``script.py`` or ``-m module``, then the program's own arguments.
        num_processes: That a launcher starts; None: there is none.
        launcher: Its name.
        environment: Variables that it sets, beside those of the world.
        finds: What is taken of processes that are as many as it finds GPUs, in a sentence.
    """

    program: list[str]
    num_processes: int | None = None
    launcher: str = ""
    environment: Mapping[str, str] = {}
    finds: str = ""


def of_torchrun(flags: Sequence[str], *, rank: int) -> Launched:
    """Return what ``torchrun`` starts."""
    del rank
    from torch.distributed.run import get_args_parser

    args = _parsed(get_args_parser().parse_args, flags, "torchrun")
    counts = str(args.nnodes).rpartition(":")[2], str(args.nproc_per_node)
    program = _program(args.training_script, args.training_script_args, is_module=args.module)
    if not all(count.isdecimal() and int(count) for count in counts):
        raise UncountedError(
            f"torchrun --nproc_per_node={counts[1]} says of no number of processes; leave torchrun "
            f"out and give --world-size N before --",
            program,
        )
    return Launched(program, int(counts[0]) * int(counts[1]), "torchrun")


def of_deepspeed(flags: Sequence[str], *, rank: int) -> Launched:
    """Return the same of ``deepspeed``, which hands each process its number on its node."""
    parser = argparse.ArgumentParser("deepspeed")
    for switch in _SWITCHES:
        parser.add_argument(switch, action="store_true")
    for value in _VALUES:
        parser.add_argument(value)
    parser.add_argument("--num_gpus", "--num_accelerators", type=int)
    parser.add_argument("--num_nodes", type=int, default=1)
    parser.add_argument("--include", "-i", default="")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = _parsed(parser.parse_args, flags, "deepspeed")
    each = args.num_gpus or _num_included(args.include)
    if each < 1 or args.num_nodes < 1:
        raise UncountedError(
            "deepspeed starts a process for each GPU that it finds, and finds none here; say "
            "--num_gpus N behind it",
            _program(args.script, args.arguments, is_module=args.module),
        )
    own = [] if args.no_local_rank else [f"--local_rank={rank % each}"]
    program = _program(args.script, [*own, *args.arguments], is_module=args.module)
    return Launched(program, each * args.num_nodes, "deepspeed")


def _num_included(text: str) -> int:
    """Count the GPUs of ``localhost:0,1``; of whole nodes nobody knows them."""
    places = [node.partition(":")[2] for node in text.split("@")]
    return sum(len(each.split(",")) for each in places) if all(places) else 0


def of_accelerate(flags: Sequence[str], *, rank: int) -> Launched:
    """Return the same of ``accelerate launch``, by Accelerate's own code."""
    del rank
    if list(flags[:1]) != ["launch"]:
        raise InputError("accelerate starts programs by accelerate launch; write launch behind it")
    if importlib.util.find_spec("accelerate") is None:
        raise InputError("accelerate launch reads its flags here, and is not installed")
    launch: Any = import_module("accelerate.commands.launch")
    args = _parsed(launch.launch_command_parser().parse_args, flags[1:], "accelerate launch")
    finds = args.num_processes is None and args.config_file is None
    if finds:
        args.num_processes = 1
    found: dict[str, str] = {}
    said = io.StringIO()
    try:
        with replaced(_noting(launch, found)), contextlib.redirect_stderr(said):
            launch.launch_command(args)
    except (Exception, SystemExit) as error:
        why = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise InputError(f"accelerate launch would refuse its flags: {why[0]}") from error
    num = int(args.num_processes or 0)
    if num < 1:
        raise InputError(
            "accelerate launch is told of no number of processes; say --num_processes N behind it"
        )
    set_here = {name: x for name, x in found.items() if os.environ.get(name) != x}
    program = _program(args.training_script, args.training_script_args, is_module=args.module)
    return Launched(program, num, "accelerate launch", set_here, _FINDS if finds else "")


def _noting(launch: Any, found: dict[str, str]) -> Iterator[tuple[Any, str, Any]]:
    """Yield what keeps Accelerate from starting processes, and notes what each would find.

    ``launch``: ``accelerate.commands.launch``.
    """
    import torch

    def note(prepare: Callable[[Any], Any]) -> Callable[[Any], None]:
        def start(args: Any) -> None:
            prepared = prepare(args)
            found.update(prepared if isinstance(prepared, dict) else prepared[1])

        return start

    yield launch, "multi_gpu_launcher", note(launch.prepare_multi_gpu_env)
    yield launch, "deepspeed_launcher", note(launch.prepare_deepspeed_cmd_env)
    yield launch, "simple_launcher", note(launch.prepare_simple_launcher_cmd_env)
    yield torch.cuda, "is_available", lambda: True
    yield torch.cuda, "device_count", lambda: _A_NODE


def _parsed(parse: Callable[[Sequence[str]], Any], flags: Sequence[str], launcher: str) -> Any:
    """Read a launcher's flags; what argparse would end the program with is one sentence."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return parse(list(flags))
    except SystemExit as error:
        why = said.getvalue().strip().splitlines()[-1:] or ["it names no script"]
        raise InputError(f"{launcher} would refuse its flags: {why[0]}") from error


def _program(script: str, arguments: Sequence[str], *, is_module: bool) -> list[str]:
    return [*([MODULE_FLAG] if is_module else []), script, *arguments]


LAUNCHERS: dict[str, Callable[..., Launched]] = {
    "torchrun": of_torchrun,
    "accelerate": of_accelerate,
    "deepspeed": of_deepspeed,
}
"""By the word that a command line begins with."""
MODULES = {"torch.distributed.run": "torchrun", "accelerate.commands.launch": "accelerate"}
"""What ``python -m`` starts them by."""
