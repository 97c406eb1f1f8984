"""How fast ``brimful web`` answers: ``python benchmarks/web.py``.

- *first*: until the page says it listens, a process of its own.
- *memory*: resident bytes of server and processes after so many questions, against those after the
  first ``--warm``. A question is what the page asks when a setting is changed: live tensors, then
  the replay; and, of every ``--whole``-th, what would make it fit. ``--stages 1`` asks for live
  tensors alone.
- *users*: so many people at once, each of whom changes a setting every so often, as the page asks:
  live tensors, then the replay. Seconds from asking to the last byte, ninety-fifth percentile.
- *on screen*, with ``--browser``, which needs Playwright and Chromium: seconds from a key press to
  the changed answer on the screen, of one of these people, while the others ask.
- *plan*: one person's, when the others have stopped, until its settings can be taken, until it is
  proven, and until all is told.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import psutil

LENGTHS = (512, 1024, 2048, 4096, 8192)
MODELS = ("llama-3.1-8b", "qwen3-8b", "mistral-7b-v0.3", "smollm2-135m", "gemma-2-9b")
WHATS = ("full", "lora", "qlora")
GPUS = ("rtx-4090", "h100-80gb", "a100-40gb", "2xrtx-3090")


@contextmanager
def served() -> Iterator[tuple[str, int, float]]:
    """Yield the address of a server, its process and the seconds until it listened."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "brimful", "web", "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
        assert server.stdout is not None
        found = re.search(r"http://\S+:\d+", server.stdout.readline())
        assert found is not None
        with httpx.Client(base_url=found[0], trust_env=False) as client:
            client.get("/api/health").raise_for_status()
        yield found[0], server.pid, time.perf_counter() - start
        server.terminate()


def drawn(number: random.Random) -> dict[str, str]:
    """Draw a question."""
    return {
        "model": number.choice(MODELS), "what": number.choice(WHATS), "gpus": number.choice(GPUS),
        "seq_len": str(number.choice(LENGTHS)), "micro_batch": number.choice(("1", "2", "4")),
    }  # fmt: skip


async def one_user(address: str, seed: int, until: float, every_s: float) -> list[list[float]]:
    """Change a setting now and then, and wait for both stages; return their seconds."""
    number, spent = random.Random(seed), []  # noqa: S311 - which question is no secret
    async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False) as client:
        await asyncio.sleep(number.random() * every_s)
        question = drawn(number)
        while time.perf_counter() < until:
            key, others = number.choice(list(question)), drawn(number)
            question[key] = others[key]
            start, each = time.perf_counter(), []
            for stage in ("tensors", "replayed"):
                (await client.post("/api/estimate", json={**question, "stage": stage})).json()
                each.append(time.perf_counter() - start)
            spent.append(each)
            await asyncio.sleep(max(0.0, number.expovariate(1 / every_s)))
    return spent


async def users(address: str, count: int, seconds: float, every_s: float) -> list[list[float]]:
    """Let so many ask at once."""
    until = time.perf_counter() + seconds
    each = await asyncio.gather(*(one_user(address, seed, until, every_s) for seed in range(count)))
    return [pair for some in each for pair in some]


def percentile(values: list[float], share: float) -> float:
    """Return the value below which so many are."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def planned(address: str) -> dict[str, float]:
    """Return the seconds of a plan until its first line, until what was found, until all."""
    told, start = {}, time.perf_counter()
    query = {"verb": "plan", "model": "llama-3.1-8b", "what": "lora", "gpus": "rtx-4090"}
    with (
        httpx.Client(base_url=address, timeout=300, trust_env=False) as client,
        client.stream("POST", "/api/run", json=query) as response,
    ):
        for line in response.iter_lines():
            event = json.loads(line)
            if event["event"] == "plan":
                told.setdefault("can be taken", time.perf_counter() - start)
            if event.get("text", "").startswith("proven"):
                told["proven"] = time.perf_counter() - start
    return {**told, "all": time.perf_counter() - start}


def resident(pid: int) -> int:
    """Return what a process and those that it began have in memory."""
    whole = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(process.memory_info().rss for process in whole)


def memory(address: str, pid: int, args: argparse.Namespace) -> tuple[int, int, int]:
    """Return resident bytes when it is warm, at most after that, and at last."""
    number, seen = random.Random(1), []  # noqa: S311 - which question is no secret
    with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
        for place in range(args.questions):
            if place >= args.warm and (place - args.warm) % 20 == 0:
                seen.append(resident(pid))
            question = drawn(number)
            stages = ["tensors", "replayed"][: args.stages]
            if args.whole and place % args.whole == 0:
                stages.append("whole")
            for stage in stages:
                client.post("/api/estimate", json={**question, "stage": stage})
    return seen[0], max(seen), resident(pid)


def on_screen(address: str, seconds: float) -> list[float]:
    """Return, of as many seconds, those from a key press to the changed answer on the screen."""
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as playwright:
        chromium = next(name for name in ("/usr/bin/chromium", "/usr/bin/google-chrome")
                        if os.path.exists(name))  # fmt: skip  # noqa: PTH110
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}/?what=qlora")
        page.wait_for_timeout(5000)
        page.evaluate(_WATCH)
        page.locator("#s-seq_len").focus()
        until = time.perf_counter() + seconds - 6  # while the others ask
        for place in itertools.count():
            if time.perf_counter() > until:
                break
            page.evaluate("window.pressed = performance.now(); window.drawnAfter = 0")
            page.keyboard.press("ArrowLeft" if place % 2 else "ArrowRight")
            while not (spent := page.evaluate("window.drawnAfter")):
                page.wait_for_timeout(20)
            found.append(spent / 1000)
            page.wait_for_timeout(1500)
        browser.close()
    return found


_WATCH = """
new MutationObserver(() => requestAnimationFrame(() => {
  if (!window.drawnAfter) window.drawnAfter = performance.now() - window.pressed;
})).observe(document.getElementById("answer"), { childList: true });
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between one's changes")
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--warm", type=int, default=200)
    parser.add_argument("--stages", type=int, choices=(1, 2), default=2)
    parser.add_argument("--whole", type=int, default=0, help="every so many; 0: none")
    parser.add_argument("--browser", action="store_true")
    args = parser.parse_args()
    with served() as (address, pid, first_s):
        print(f"first       {first_s:.2f} s until it answers; {load()}", flush=True)
        time.sleep(4)
        if args.questions:
            warm, most, last = memory(address, pid, args)
            print(
                f"memory      {warm / 2**20:.1f} MiB after {args.warm} questions, "
                f"{last / 2**20:.1f} after {args.questions}: {last / warm - 1:+.1%}, "
                f"at most {most / warm - 1:+.1%}; {load()}",
                flush=True,
            )
        if args.seconds == 0:
            return
        _users(address, args)
        for _ in range(2):
            told = ", ".join(f"{name} {spent:.2f} s" for name, spent in planned(address).items())
            print(f"plan        {told}; {load()}", flush=True)


def _users(address: str, args: argparse.Namespace) -> None:
    """Let people ask, one of them on a screen, and print how long they waited."""
    seen: list[float] = []
    count = args.users - args.browser
    with ThreadPoolExecutor(1) as beside:
        asking = beside.submit(asyncio.run, users(address, count, args.seconds, args.every))
        if args.browser:
            seen = on_screen(address, args.seconds)
        spent = asking.result()
    for place, stage in enumerate(("tensors", "replayed")):
        print(told(f"{stage}, {count} users", [pair[place] for pair in spent]), flush=True)
    if seen:
        print(told("on screen beside them", seen), flush=True)


def told(what: str, each: list[float]) -> str:
    """Say how long something took."""
    middle, late = statistics.median(each) * 1e3, percentile(each, 0.95) * 1e3
    return f"{what}: {len(each)} times, median {middle:.0f} ms, 95 % {late:.0f} ms; {load()}"


def load() -> str:
    """Say how busy the machine is."""
    return f"load {os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    main()
