"""``brimful web``: a page to explore with, served by this machine to itself."""

import argparse
import re
import socket
import sys
import threading
import webbrowser
from pathlib import Path

from brimful.cli import output_paths, parsing
from brimful.errors import InputError, RunError
from brimful.files.writing import write_bytes
from brimful.text.terminal import say
from brimful.units import format_bytes

HELP = "a page to explore with: paste a model, move a slider, see what breaks first"
HOST, PORT = "127.0.0.1", 7862
_LOOPBACK = ("127.0.0.1", "localhost")
_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_LONGEST_ADDRESS = 192 * 1024
"""Bytes: a question with a pasted configuration, spelled as an address, and one to compare."""
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - shown only
_MOST_PORT = 65535
_HF_SPACE = "https://huggingface.co"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    parser.usage = "%(prog)s [flags]"
    add = parser.add_argument
    add(
        "--port",
        metavar="N",
        type=parsing.whole("--port", least=0),
        default=PORT,
        help=f"where it listens, 0 for any that is free; default {PORT}",
    )
    add(
        "--host",
        metavar="ADDRESS",
        default=HOST,
        help=f"who may reach it: {HOST} is this machine alone, 0.0.0.0 whoever reaches this "
        f"machine, which also needs --allow-host; default {HOST}",
    )
    add(
        "--allow-host",
        metavar="NAMES",
        default="",
        help="names under which it may be reached besides this machine's own, by comma; *.name is "
        "any below it",
    )
    add("--no-open", action="store_true", help="do not open a browser")
    add(
        "--static",
        metavar="MODEL",
        help="serve nothing: write a page of this model that needs no server, its answers computed "
        "beforehand (two minutes)",
    )
    add(
        "-o",
        "--output",
        metavar="FILE",
        type=output_paths.output_file("-o"),
        help="where --static writes it; default MODEL.html",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until it is interrupted; or write a page that needs no server."""
    if args.static is not None:
        return _write(args)
    if args.output is not None:
        raise InputError("-o is where --static writes its page; give --static MODEL too")
    names = [name.strip() for name in args.allow_host.split(",") if name.strip()]
    _check(args, names)
    import uvicorn

    from brimful.web.app import make_app

    listening = _listen(args.host, args.port)
    port = listening.getsockname()[1]
    shown = HOST if args.host in {*_LOOPBACK, *_EVERYWHERE} else args.host
    address = f"http://{shown}:{port}/"
    say(f"Brimful answers at {address} (Ctrl-C ends it)", flush=True)
    if not args.no_open:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    framed_by = (_HF_SPACE,) if any(name.endswith(".hf.space") for name in names) else ()
    hosts = [*names, *([args.host] if _NAME.fullmatch(args.host) else [])]
    config = uvicorn.Config(
        make_app(hosts, framed_by=framed_by),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=200,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=_LONGEST_ADDRESS,
    )
    uvicorn.Server(config).run(sockets=[listening])
    say("ended", file=sys.stderr)
    return 0


def _write(args: argparse.Namespace) -> int:
    """Write the page of one model."""
    from brimful.web.state import check_name
    from brimful.web.static_page import static_page

    check_name(args.static)
    path = args.output or Path(f"{args.static.rpartition('/')[2]}.html")
    say(f"computing the answers of {args.static} ...", file=sys.stderr, flush=True)
    text = static_page(args.static)
    write_bytes(path, text.encode("utf-8"))
    say(f"{path}: {format_bytes(len(text.encode('utf-8')))}")
    return 0


def _check(args: argparse.Namespace, names: list[str]) -> None:
    """Refuse what would serve strangers without having been asked to."""
    if args.port > _MOST_PORT:
        raise InputError(f"--port {args.port} is no port; give 0 to {_MOST_PORT}")
    if args.host == "::1":
        raise InputError(f"--host ::1 is no name that can be checked; give {HOST}")
    if args.host not in _LOOPBACK and not names:
        raise InputError(
            f"--host {args.host} lets other machines in; say under which name they come, as in "
            f"--allow-host gpu-box.example.org"
        )
    if "*" in names:
        raise InputError("--allow-host * is every name, which checks none; name them")
    for name in names:
        if not _NAME.fullmatch(name):
            raise InputError(
                f"--allow-host {name} is no name of a host; give one, as in gpu-box.example.org, "
                f"or *.example.org for any below it"
            )


def _listen(host: str, port: int) -> socket.socket:
    """Take the address before anything is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise RunError(
            f"{host}:{port} cannot be listened at ({error.strerror}); give another --port"
        ) from error
    return listening
