"""Processes are lent, and none is lost: not late, not by a death, not by nonsense."""

import asyncio
import contextlib
import os
import signal
import time

import pytest

from brimful.web import pool as pools
from brimful.web.pool import Kept, Pool

STANDS_IN = """
import sys, json, time, os; nice = {}
tell = lambda **said: (sys.stdout.write(json.dumps(said) + chr(10)), sys.stdout.flush())
tell(event="ready")
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "sleep": time.sleep(request["seconds"])
    if request["do"] == "nonsense": sys.stdout.write("what" + chr(10))
    if request["do"] == "long": sys.stdout.write("x" * 300000 + chr(10))
    if request["do"] == "list": sys.stdout.write("[1]" + chr(10))
    if request["do"] == "many":
        for number in range(10**6): tell(event="text", text="x" * 1000)
    tell(event="pid", pid=os.getpid())
    tell(event="end", is_heavy=False)
"""
ONE = Kept(size=1, limit_s=20, most_questions=100, nice=0, ends_late=True)


@pytest.fixture(autouse=True)
def _stands_in(monkeypatch):
    monkeypatch.setattr(pools, "_NICE", STANDS_IN)
    monkeypatch.setattr(pools, "_PAUSE_S", 0.01)


def run(work, kept=ONE, own=None):
    """Run work with a pool that ends with it."""

    async def whole():
        pool = Pool(kept)
        pool.begin(own or {})
        try:
            return await asyncio.wait_for(work(pool), 60)
        finally:
            await pool.close()

    return asyncio.run(whole())


async def asked(pool, **request):
    return [event async for event in pool.ask(request)]


async def rest(events):
    return [event async for event in events]


async def pid_of(pool):
    return (await asked(pool, do="pid"))[0]["pid"]


@pytest.mark.parametrize("do", ["nonsense", "list", "long"])
def test_a_process_that_says_what_is_no_event_is_replaced(do, monkeypatch):
    monkeypatch.setattr(pools, "_LINE_BYTES", 2**16)

    async def work(pool):
        first = await pid_of(pool)
        with pytest.raises(ConnectionError):
            await asked(pool, do=do)
        return first, await pid_of(pool)

    first, then = run(work)
    assert first != then


def test_a_process_that_has_ended_is_handed_to_nobody():
    async def work(pool):
        first = await pid_of(pool)
        os.kill(first, signal.SIGKILL)
        await asyncio.sleep(0.3)
        return first, await pid_of(pool)

    first, then = run(work)
    assert first != then


def test_a_process_that_was_handed_over_too_late_is_handed_to_the_next(monkeypatch):
    """Since Python 3.12 waiting may end late though what was waited for has come."""

    async def late(waiting, _limit_s):
        await asyncio.wait({waiting})
        raise TimeoutError

    async def work(pool):
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "wait_for", late)
            with pytest.raises(TimeoutError):
                await asked(pool, do="pid")
        return await pid_of(pool)

    assert run(work, ONE._replace(limit_s=5))


def test_where_no_process_can_be_begun_one_is_begun_later(monkeypatch):
    begin, fails = asyncio.create_subprocess_exec, [OSError("no memory"), OSError("no memory")]

    async def fail_first(*given, **named):
        if fails:
            raise fails.pop()
        return await begin(*given, **named)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail_first)
    assert run(pid_of)
    assert not fails


def test_a_question_is_bounded_also_where_nobody_reads_its_answer():
    async def work(pool):
        events = pool.ask({"do": "many"})
        assert (await anext(events))["event"] == "text"
        await asyncio.sleep(2.2)
        then = await pid_of(pool)  # there is one process, and it was ended
        with pytest.raises(TimeoutError):
            await rest(events)
        return then, await pid_of(pool)  # replaced once

    then, last = run(work, ONE._replace(limit_s=2))
    assert then == last


def test_what_takes_too_long_is_ended():
    async def work(pool):
        first = await pid_of(pool)
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            await asked(pool, do="sleep", seconds=30)
        return first, await pid_of(pool), time.monotonic() - start

    first, then, spent = run(work, ONE._replace(limit_s=1))
    assert first != then
    assert spent < 10


@pytest.mark.parametrize("ends_late", [True, False])
def test_whoever_goes_holds_no_process(ends_late):
    async def work(pool):
        first = await pid_of(pool)
        events = pool.ask({"do": "sleep", "seconds": 0.5})
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await events.aclose()
        return first, await pid_of(pool)

    first, then = run(work, ONE._replace(ends_late=ends_late))
    assert (first != then) == ends_late


def test_processes_have_the_environment_that_is_given(monkeypatch, tmp_path):
    monkeypatch.setattr(
        pools, "_NICE", STANDS_IN.replace("pid=os.getpid()", "pid=os.environ['BRIMFUL_CACHE']")
    )
    assert run(pid_of, own={"BRIMFUL_CACHE": str(tmp_path)}) == str(tmp_path)
