"""Processes for tests that begin with torch and transformers loaded.

A new interpreter takes six seconds of a processor before its first line of ours; a fork of a server
that has imported what is heavy takes a tenth of one. Nothing of Brimful is loaded in the server: a
process that is metered must be free of the pretend GPU's instruments, and starts as a user's does.
"""

import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import warnings
from multiprocessing import forkserver
from pathlib import Path

LOADED = (
    "torch",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.distributed.elastic.multiprocessing",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.run",
    "torch.distributed.tensor",
    "torch.profiler",
    "transformers",
    "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama",
    "peft",
    "msgspec",
    "numpy.ma",
    "rich.console",
    "rich.table",
)
TESTS_OWN = {str(Path(__file__).parent), str(Path(__file__).parents[1])}
"""What pytest puts on the path of modules, and no program of a user's has."""


def server():
    """Return the context whose processes are forks of the server, which the first one starts."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LOADED))
    return context


def run(argv, *, cwd=None, env=None, given=b"", forks=False):
    """Run Python as ``subprocess.run`` does with text captured, in a fork of the server.

    Args:
        argv: What follows ``python``: ``-m MODULE ...``, ``-c CODE ...`` or a script's path.
        cwd: Where it runs; None: here.
        env: Its whole environment; None: that of the test.
        given: What it reads on standard input.
        forks: Whether the Python processes that it runs in turn are forks too.

    Returns:
        A ``subprocess.CompletedProcess``; a negative return code is the signal that ended it.
    """
    return Started(argv, cwd=cwd, env=env, given=given, forks=forks).wait()


class Started:
    """A process that runs beside the test; see ``run``."""

    def __init__(self, argv, *, cwd=None, env=None, given=b"", forks=False):
        self.argv = [str(word) for word in argv]
        self._folder = tempfile.TemporaryDirectory()
        self._files = [Path(self._folder.name, name) for name in ("stdin", "stdout", "stderr")]
        self._files[0].write_bytes(given)
        environment = dict(os.environ if env is None else env)
        self.process = server().Process(
            target=_become,
            args=(self.argv, str(cwd or Path.cwd()), environment, self._files, forks),
        )
        self.process.start()

    def wait(self):
        """Wait for its end; returns a ``subprocess.CompletedProcess``."""
        self.process.join()
        said = [path.read_text("utf-8") if path.exists() else "" for path in self._files[1:]]
        self._folder.cleanup()
        return subprocess.CompletedProcess(self.argv, self.process.exitcode, *said)

    def kill(self):
        """End it, whatever it does."""
        self.process.kill()
        self.process.join()


def run_group(target, num, *args):
    """Call ``target(rank, *args)`` in several processes at once, and wait for all of them.

    Raises:
        torch.multiprocessing.ProcessRaisedException: With what one of them raised.
    """
    from torch.multiprocessing import start_processes

    server()
    start_processes(target, args=args, nprocs=num, start_method="forkserver")


def _become(argv, cwd, environment, files, forks):
    """Turn the fork into the interpreter that was asked for."""
    for number, path in enumerate(files):
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(n, mode, encoding="utf-8", closefd=False) for n, mode in enumerate("rww")
    )
    forkserver._forkserver.ensure_running = lambda: None  # the server is there: we are its fork
    if forks:
        subprocess.run = run_command
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for option in filter(None, environment.get("PYTHONWARNINGS", "").split(",")):
        warnings._setoption(option)
    if not forks:  # whose own forks find this module by that path
        sys.path[:] = [path for path in sys.path if path not in TESTS_OWN]
    what, rest = argv[0], argv[1:]
    if what == "-m":
        sys.argv = rest
        sys.path.insert(0, cwd)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - ours
    else:
        sys.argv = argv
        sys.path.insert(0, str(Path(what).parent))
        runpy.run_path(what, run_name="__main__")


_RUN = subprocess.run
_TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def run_command(command, *, cwd=None, env=None, check=False, **how):
    """Stand in for ``subprocess.run``: of Python and torchrun as forks, of all else as ever."""
    words = [str(word) for word in command]
    if sys.executable not in words:
        return _RUN(command, cwd=cwd, env=env, check=check, **how)
    words = words[words.index(sys.executable) + 1 :]
    if words[: len(_TORCHRUN)] == _TORCHRUN:
        num, *words = words[len(_TORCHRUN) :]
        done = _run_ranks(int(num), words, cwd=cwd, env=env)
    else:
        done = run(words, cwd=cwd, env=env, given=how.get("input", b""), forks=True)
    if check and done.returncode:
        print(done.stderr, file=sys.stderr)
        done.check_returncode()
    if not how.get("text"):
        done.stdout, done.stderr = done.stdout.encode(), done.stderr.encode()
    return done


def _run_ranks(num, words, *, cwd, env):
    """Run as many processes as torchrun would, which tells them of each other in the same words."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    told = {"WORLD_SIZE": num, "LOCAL_WORLD_SIZE": num, "MASTER_ADDR": "localhost"}
    started = []
    for rank in range(num):
        told |= {"MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank}
        environment = dict(os.environ if env is None else env)
        environment |= {name: str(value) for name, value in told.items()}
        started.append(Started(words, cwd=cwd, env=environment))
    ended = [each.wait() for each in started]
    return next((done for done in ended if done.returncode), ended[0])
