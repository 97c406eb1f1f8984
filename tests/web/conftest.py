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
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        first = server.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", first)
        assert found, first + server.stderr.read()
        yield found[0]
        server.terminate()
        server.wait(20)
        said = server.stderr.read()
        server.stdout.close()
    assert "Traceback" not in said, said


@pytest.fixture(scope="session")
def client(address):
    with httpx.Client(base_url=address, timeout=120, trust_env=False) as client:
        yield client
