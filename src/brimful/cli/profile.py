"""``brimful profile``: trace what a block allocates and computes, into the shipped data."""

import argparse

import msgspec

from brimful.cli import flags, output_paths
from brimful.cli.output import show_json
from brimful.errors import InputError
from brimful.text.terminal import say

HELP = "trace the profile of a key such as llama.hf.bf16-mixed.sdpa.cuda; --all makes every one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    parser.add_argument(
        "key", metavar="KEY", nargs="?", help="ARCHITECTURE.hf.PRECISION.ATTENTION.KERNELS"
    )
    parser.add_argument("--all", action="store_true", help="every key that is shipped")
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=output_paths.output_folder("-o"),
        help="folder (default: the data)",
    )
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Trace and write."""
    from brimful.process.library_output import quiet_libraries

    if (args.key is None) == (not args.all):
        raise InputError("give either one profile key or --all; see brimful profile --help")
    quiet_libraries()
    from brimful.cli.progress import Progress
    from brimful.files.writing import write_bytes
    from brimful.simulate.profile import (
        data_folder,
        make_profile,
        program_named,
        shipped_eval_keys,
        shipped_keys,
    )

    if not args.all:
        program_named(args.key)
    keys = (*shipped_keys(), *shipped_eval_keys()) if args.all else (args.key,)
    written = []
    for key in keys:
        folder = args.output or data_folder(key)
        with Progress(key, quiet=args.json) as progress:
            profile = make_profile(key, on_progress=progress.update_share)
        write_bytes(folder / f"{key}.json", msgspec.json.encode(profile))
        written.append(str(folder / f"{key}.json"))
    if args.json:
        show_json({"schema": "brimful.profile-run/1", "written": written})
    else:
        say("\n".join(written))
    return 0
