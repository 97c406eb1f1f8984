import os
import signal
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
