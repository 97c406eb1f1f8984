"""The flags that say what a run is trained on, and how its records are read."""

import argparse
from typing import TYPE_CHECKING, get_args

from brimful.cli import parsing
from brimful.errors import InputError
from brimful.files.writing import read_whole

if TYPE_CHECKING:
    from brimful.train.data.source import DataSource

_FIELDS = ("text", "messages", "label", "source", "target")


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add ``--data`` and what goes with it."""
    from brimful.train.data.source import Format, OnBadRecord, plain_source

    plain = plain_source("stdlib")
    add = parser.add_argument_group("data").add_argument
    add("--data", metavar="PATH", help="file, folder, hub data set, or stdlib: Python's sources")
    formats, reactions = get_args(Format), get_args(OnBadRecord)
    _choice(add, "--data-format", formats, plain.format)
    add("--data-config", metavar="NAME", help="configuration of a hub data set")
    add("--data-split", metavar="NAME", help=f"default {plain.split}")
    for field in _FIELDS:
        default = getattr(plain, f"{field}_field")
        add(f"--{field}-field", metavar="NAME", help=f"field of a record; default {default}")
    add("--tokenizer", metavar="PATH", help="default: the weights' own, or one trained on the text")
    add("--chat-template", metavar="FILE", type=parsing.path("--chat-template"), help="Jinja")
    _choice(add, "--on-bad-record", reactions, plain.on_bad_record)
    add("--streaming", action="store_const", const=True, help="read as needed, keep nothing")
    buffer = parsing.whole("--shuffle-buffer")
    add("--shuffle-buffer", metavar="N", type=buffer, help=f"default {plain.shuffle_buffer}")
    add("--heldout", metavar="PATH", help="data to judge by; default: a share of --data")
    share = parsing.number("--heldout-share")
    add("--heldout-share", metavar="X", type=share, help=f"default {plain.heldout_share:g}")


def _choice(add, flag: str, allowed: tuple[str, ...], default: str) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - argparse's bound method
    kind = parsing.choice(flag.removeprefix("--"), allowed)
    add(flag, metavar="NAME", type=kind, help=f"{' or '.join(allowed)}; default {default}")


def source_from(args: argparse.Namespace) -> "DataSource":
    """Resolve the data flags."""
    from brimful.train.data.source import plain_source

    if not args.data:
        said = "--data is missing" if args.data is None else "--data '' names nothing"
        raise InputError(f"{said}; give a file, a folder, or --data stdlib")
    given = {
        "config": args.data_config,
        "format": args.data_format,
        "split": args.data_split,
        "tokenizer": args.tokenizer,
        "chat_template": _template(args),
        "on_bad_record": args.on_bad_record,
        "streaming": args.streaming,
        "shuffle_buffer": args.shuffle_buffer,
        "heldout": args.heldout,
        "heldout_share": args.heldout_share,
        **{f"{field}_field": getattr(args, f"{field}_field") for field in _FIELDS},
    }
    return plain_source(args.data, **{name: x for name, x in given.items() if x is not None})


def refuse_alone(args: argparse.Namespace) -> None:
    """Refuse flags on data that are given without ``--data``, where a run goes on with its own."""
    names = (
        "data_config", "data_format", "data_split", "tokenizer", "chat_template", "on_bad_record",
        "streaming", "shuffle_buffer", "heldout", "heldout_share", *(f"{f}_field" for f in _FIELDS),
    )  # fmt: skip
    for name in names:
        if getattr(args, name) is not None:
            raise InputError(
                f"--{name.replace('_', '-')} is given without --data, and the run goes on with the "
                f"data it began with; leave it out, or give --data as well"
            )


def _template(args: argparse.Namespace) -> str | None:
    if args.chat_template is None:
        return None
    try:
        text = read_whole(args.chat_template).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"--chat-template {args.chat_template} cannot be read ({reason}); give a Jinja file"
        ) from error
    return text
