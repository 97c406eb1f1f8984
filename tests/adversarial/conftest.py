"""Files that want to do harm: each command line has seconds, and says one sentence."""

import signal
import time

import pytest
from tests.cli.conftest import brimful, folder  # noqa: F401 - fixtures

LIMIT_S = 180.0
"""For what would hang for ever; what takes long is told by CPU seconds, on a busy machine too."""


@pytest.fixture(autouse=True)
def no_hang():
    """End a test that would wait for ever: a pipe that nobody writes, a disk that has no end."""

    def stop(_number, _frame):
        pytest.fail(f"not done after {LIMIT_S:.0f} s")

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


@pytest.fixture
def refused(brimful):  # noqa: F811 - the fixture
    """Run a command line that must be refused in one plain sentence, at once."""

    def run(*argv, most_s=2.0):
        start_s = time.process_time()
        said = brimful(*argv)
        assert time.process_time() - start_s < most_s
        assert said.code == 2, said
        assert said.err.startswith("brimful: ")
        assert said.err.count("\n") == 1
        assert said.err.rstrip("\n").isprintable(), ascii(said.err)
        assert len(said.err) < 1000, len(said.err)
        return said.err

    return run
