"""One server for all tests of the page, as ``brimful web`` starts it."""

import re
import subprocess
import sys

import httpx
import pytest


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    command = [sys.executable, "-m", "brimful", "web", "--no-open", "--port", "0"]
    folder = tmp_path_factory.mktemp("server")
    (folder / "secret.json").write_text('{"model_type": "llama", "secret": 1}', "utf-8")
    (folder / "config.json").write_text('{"model_type": "llama"}', "utf-8")
    log = tmp_path_factory.mktemp("log") / "stderr.txt"
    with (
        log.open("w", encoding="utf-8") as said,  # a pipe that nobody empties would stop it
        subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=said, text=True
        ) as server,
    ):
        first = server.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", first)
        assert found, first + log.read_text("utf-8")
        yield found[0]
        server.terminate()
        server.wait(20)
        server.stdout.close()
    assert "Traceback" not in log.read_text("utf-8"), log.read_text("utf-8")


@pytest.fixture(scope="session")
def client(address):
    with httpx.Client(base_url=address, timeout=120, trust_env=False) as client:
        yield client
