"""``brimful convert``: a trained model as one that holds integers, and the proof that it is it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from brimful.cli import data_flags, flags, output_paths, parsing
from brimful.cli.output import DOES_NOT_FIT, FITS, show, show_json
from brimful.errors import InputError
from brimful.techniques.quantization import GROUP_SIZE, LONGEST_ROW, Scheme
from brimful.values.run_files import PLAN_FILE

if TYPE_CHECKING:
    from brimful.train.convert import Given

HELP = (
    "quantise a finished run, or a folder of a model, to int8 or int4 by torchao, write it as "
    "safetensors that transformers loads, and check its held-out loss against that of the model "
    "that rounds as qat trains it; exit code 1 where they differ"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="a finished run, or a model with config.json")
    add(
        "--to",
        metavar="NAME",
        type=parsing.choice("scheme", get_args(Scheme)),
        help=f"{' or '.join(get_args(Scheme))}; default: what the run was trained for",
    )
    add(
        "--group-size",
        metavar="N",
        type=parsing.whole("--group-size"),
        help=f"weights of a row that share a scale, of int4; default {GROUP_SIZE}, or the run's",
    )
    add(
        "-o",
        "--output",
        metavar="DIR",
        type=output_paths.output_folder("-o"),
        required=True,
        help="folder",
    )
    add(
        "--seq-len",
        metavar="N",
        type=parsing.whole("--seq-len"),
        help=f"tokens of a held-out row of a model; default its positions, at most {LONGEST_ROW}",
    )
    data_flags.add_data(parser)
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Convert, check and print."""
    from brimful.process.library_output import quiet_libraries

    quiet_libraries()
    from brimful.train.convert import chosen, convert_model
    from brimful.train.out_folder import token_cache

    given = _given(args)
    quantization = chosen(given.job, args.to, args.group_size)
    made = convert_model(given, quantization, out=args.output, cache=token_cache(args.output))
    if args.json:
        import msgspec

        show_json(msgspec.structs.asdict(made))
    else:
        from brimful.report.conversion import conversion_tables

        show(conversion_tables(made, out=str(args.output)))
    return FITS if made.is_kept else DOES_NOT_FIT


def _given(args: argparse.Namespace) -> "Given":
    from brimful.train.convert import given_folder, given_run

    folder = Path(args.folder)
    if args.data is None:
        data_flags.refuse_alone(args)
    source = None if args.data is None else data_flags.source_from(args)
    if (folder / PLAN_FILE).is_file():
        if args.seq_len is not None:
            raise InputError(
                f"--seq-len {args.seq_len} has no meaning for a run, which says its own; leave it "
                f"out, or convert its model"
            )
        return given_run(folder, source)
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{folder} holds neither a run's {PLAN_FILE} nor a model's config.json; give either"
        )
    if source is None:
        raise InputError(
            f"{folder} is a model, which does not say what to judge it by; give --data"
        )
    return given_folder(folder, source, seq_len=args.seq_len)
