import os
import signal
import subprocess
import sys
import threading

import pytest

from brimful.train.interrupt import catch_interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_stops(number):
    before = signal.getsignal(number)
    with catch_interrupts() as is_interrupted:
        assert not is_interrupted()
        os.kill(os.getpid(), number)
        assert is_interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_another_thread_handles_no_signals():
    answers = []

    def run():
        with catch_interrupts() as is_interrupted:
            answers.append(is_interrupted())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert answers == [False]


BURST = """
import subprocess, sys
from brimful.train import interrupt
interrupt.is_spread = lambda: True
send = "import os, sys; [os.kill(os.getppid(), int(sys.argv[1])) for _ in range(50_000)]"
with interrupt.catch_interrupts() as is_interrupted:
    senders = [subprocess.Popen([sys.executable, "-c", send, number]) for number in ("2", "15")]
    while any(sender.poll() is None for sender in senders):
        pass
    print(is_interrupted())
"""
PATIENCE_S = 120.0


def test_a_signal_that_interrupts_the_handler_of_another_waits_for_nothing():
    done = subprocess.run(
        [sys.executable, "-c", BURST],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "True"
