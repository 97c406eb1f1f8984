"""The server: what it answers, what it refuses, and that it keeps nothing of anybody."""

import json
import re
import threading
import time
from pathlib import Path

import httpx
import pytest

from brimful.cli.main import main
from brimful.web.app import MOST_BODY_BYTES
from brimful.web.state import MOST_CONFIG_BYTES

SHORT = {"what": "qlora", "model": "llama-3.2-1b", "micro_batch": "2", "loss_chunks": "1"}
"""A plan that is soon found and proven."""


def events(response):
    return [json.loads(line) for line in response.iter_lines() if line]


def test_the_page_comes_with_its_answer_before_any_script(client):
    page = client.get("/", params={"gpus": "h100-80gb"})
    assert page.status_code == 200
    assert "FITS: " in page.text
    assert '<option value="qwen3-8b"></option>' in page.text
    assert re.search(r'id="f-seq_len"[^>]*placeholder="4096"', page.text)
    assert "brimful estimate llama-3.1-8b --method=lora --gpus=h100-80gb" in page.text
    assert "https://" not in page.text.replace("https://huggingface.co", "")


def test_a_large_pasted_configuration_is_an_address_too(client):
    config = {"model_type": "llama", "names": ["\u2026" * 40] * 64}
    text = json.dumps(config, separators=(",", ":"))
    assert 15_000 < len(text) < MOST_CONFIG_BYTES
    page = client.get("/", params={"config": text})
    assert page.status_code == 200
    assert client.get("/api/estimate", params={"config": text}).json()["part"]["refused"]


def test_both_languages(client):
    assert 'lang="zh"' in client.get("/", params={"lang": "zh"}).text
    assert 'lang="zh"' in client.get("/", headers={"Accept-Language": "zh-CN,en;q=0.5"}).text
    assert 'lang="en"' in client.get("/", headers={"Accept-Language": "fr"}).text


def test_every_file_of_the_page_is_its_own(client):
    page = client.get("/").text
    loads = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page)
    assert len(loads) == 6
    for load in loads:
        assert client.get(load).status_code == 200
    for other in ("/assets/../page.py", "/assets/%2e%2e/page.py", "/assets/strings.json",
                  "/assets/..%2f..%2fdata%2fgpus.json", "//etc/passwd"):  # fmt: skip
        assert client.get(other).status_code == 404


def test_the_policy_lets_nothing_else_in(client):
    headers = client.get("/").headers
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1"])
def test_another_host_is_refused(client, host):
    assert client.get("/", headers={"Host": host}).status_code == 400


OPENED = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_another_site_may_open_the_page_and_nothing_else(client, site):
    foreign = {"Sec-Fetch-Site": site}
    for path in ("/api/estimate", "/api/health", "/accuracy", "/assets/web.js"):
        assert client.get(path, headers=foreign).status_code == 403
        assert client.get(path, headers={**foreign, **OPENED}).status_code == 403
    assert client.post("/api/run", json={}, headers={**foreign, **OPENED}).status_code == 403
    assert client.get("/", headers={**foreign, **OPENED}).status_code == 200
    for other in ({}, {"Sec-Fetch-Dest": "iframe"}, {"Sec-Fetch-Dest": "image"},
                  {"Sec-Fetch-Mode": "no-cors"}):  # fmt: skip
        headers = {**foreign, **OPENED, **other} if other else foreign
        assert client.get("/", headers=headers).status_code == 403


@pytest.mark.parametrize("site", ["same-origin", "none", None])
def test_the_page_itself_and_plain_clients_may_ask(client, site):
    headers = {} if site is None else {"Sec-Fetch-Site": site}
    for path in ("/api/health", "/accuracy", "/"):
        assert client.get(path, headers=headers).status_code == 200


def test_an_origin_that_is_not_the_pages_may_not_ask(client, address):
    for origin in ("https://evil.example", "null", "", "http://localhost:1", "file://"):
        assert client.post("/api/estimate", json={}, headers={"Origin": origin}).status_code == 403
    asked = client.post("/api/estimate", json={"stage": "tensors"}, headers={"Origin": address})
    assert asked.json()["part"]["verdict"]


def test_a_link_elsewhere_does_not_let_the_hub_be_asked(client):
    query = {"model": "nobody/nothing", "hub": "1", "other": "model=nobody/nothing&hub=1"}
    headers = {"Sec-Fetch-Site": "cross-site", **OPENED}
    page = client.get("/", params=query, headers=headers).text
    assert "allow this page to ask the hub" in page
    assert 'name="hub" value="1" checked' not in page
    assert "hub=1" not in page
    assert 'name="hub" value="1" checked' in client.get("/", params=query).text


def test_what_takes_long_is_started_by_the_page_only(client):
    for path in ("/api/run", "/api/gpus"):
        assert client.get(path).status_code == 405


def test_health_tells_nothing_of_the_machine(client):
    assert client.get("/api/health").json() == {"schema": "brimful.web/1"}


@pytest.mark.parametrize(
    "model", ["secret.json", "./secret.json", ".", "config.json", "/etc/passwd", "os:getcwd"]
)
def test_no_file_of_the_machine_is_read(client, model):
    said = client.get("/api/estimate", params={"model": model})
    assert said.status_code == 400
    assert "reads no file of the machine" in said.json()["text"]


def test_a_folder_beside_the_server_is_no_model(client):
    said = client.get("/api/estimate", params={"model": "some/thing", "hub": ""})
    assert "not among the" in said.json()["part"]["refused"]


def test_names_are_text(client):
    name = "<img src=x onerror=alert(1)>"
    page = client.get("/", params={"model": name}).text
    assert "<img" not in page
    assert "&lt;img" in page
    page = client.get("/", params={"gpus": '"><script>alert(1)</script>'}).text
    assert "<script>alert" not in page


def test_a_question_is_bounded(client):
    large = client.post("/api/estimate", content=b"x" * (MOST_BODY_BYTES + 1))
    assert large.status_code == 413

    def chunks():
        for _ in range(200):
            yield b"x" * 1024

    assert "bytes at most" in client.post("/api/estimate", content=chunks()).json()["text"]
    for wrong in (b"[]", b"{", b'{"model": 1}', b"[" * 50000):
        assert "JSON object of texts" in client.post("/api/estimate", content=wrong).json()["text"]
    deep = {"config": '{"a":' * 9 + "1" + "}" * 9}
    assert "brackets" in client.post("/api/estimate", json=deep).json()["text"]
    assert client.get("/api/estimate?model=a&model=b").status_code == 400


def test_the_json_of_the_page_is_that_of_the_command(client, capsys):
    main(["estimate", "llama-3.1-8b", "--method", "lora", "--gpus", "h100-80gb", "--json"])
    said = json.loads(capsys.readouterr().out)
    in_words = {name: said.pop(name) for name in ("verdict", "reason", "ways_out")}
    part = client.get("/api/estimate", params={"gpus": "h100-80gb"}).json()["part"]
    assert part["values"] == said
    assert in_words["verdict"] == "FITS", "which the page shows beside them"


def test_stages_and_axes_are_named_in_a_refusal(client):
    assert "tensors" in client.get("/api/estimate", params={"stage": "x"}).json()["text"]
    assert "seq_len" in client.get("/api/sweep", params={"axis": "x"}).json()["text"]
    assert "plan" in client.post("/api/run", json={"verb": "train"}).json()["text"]


def test_a_plan_is_told_and_can_be_taken_before_it_is_proven(client):
    said = []
    with client.stream("POST", "/api/run", json={"verb": "plan", **SHORT}) as response:
        for line in response.iter_lines():
            said.append(json.loads(line))
            if said[-1]["event"] == "plan":
                break
    assert said[0]["event"] == "note"
    assert "predicted, being proven" in said[0]["text"]
    assert "answer" not in {event["event"] for event in said}
    taken = client.post("/api/estimate", json=said[-1]["query"]).json()["part"]
    assert taken["verdict"] == "FITS"
    assert said[-1]["yaml"].startswith("schema: brimful.plan/")


def test_what_is_kept_goes_with_the_server():
    import asyncio

    from brimful.web import app as served

    async def begin():
        app = served.make_app()
        async with app.router.lifespan_context(app):
            own = app.state.pools.jobs._own
            folders = {name: Path(own[name]) for name in ("BRIMFUL_CACHE", "HF_HUB_CACHE")}
            asked = [event async for event in app.state.pools.quick.ask(
                {"query": {"gpus": "h100-80gb"}, "do": "ask", "stage": "replayed"})]  # fmt: skip
            assert folders["BRIMFUL_CACHE"].parent.is_dir()
            assert asked[0]["part"]["verdict"] == "FITS"
        return folders

    folders = asyncio.run(begin())
    assert len(set(folders.values())) == 2
    assert not any(folder.parent.exists() for folder in folders.values())


@pytest.mark.long  # cli/test_on_demand.py traces on demand, the test above streams
@pytest.mark.torch
def test_a_model_that_nobody_traced_is_traced_when_that_is_asked_for(client):
    config = {
        "model_type": "stablelm", "hidden_size": 192, "intermediate_size": 512,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
        "vocab_size": 1237, "max_position_embeddings": 1024,
    }  # fmt: skip
    query = {"config": json.dumps(config), "what": "full", "seq_len": "256"}
    assert "transformers" in client.post("/api/estimate", json=query).json()["part"]["untold"]
    with client.stream("POST", "/api/run", json={**query, "verb": "estimate"}) as response:
        said = events(response)
    assert any("is traced here, once" in event.get("text", "") for event in said)
    assert next(event for event in said if event["event"] == "answer")["part"]["verdict"] == "FITS"
    assert client.post("/api/estimate", json=query).json()["part"]["verdict"] == "FITS"


def test_what_is_taken_along_is_what_export_writes(client, tmp_path, capsys):
    query = {"gpus": "h100-80gb"}
    plan = client.get("/api/take", params={**query, "target": "plan.yaml"}).json()["text"]
    path = tmp_path / "plan.yaml"
    path.write_text(plan, "utf-8")
    for target in ("trl", "hf-trainer"):
        assert main(["export", str(path), "--to", target]) == 0
        text = capsys.readouterr().out.replace(str(path), "plan.yaml")
        took = client.get("/api/take", params={**query, "target": target}).json()
        assert took["text"] == text
        assert all(not line.startswith(" ") for line in took["lost"])
        told = " ".join(line.removeprefix("#").strip() for line in text.splitlines())
        assert took["lost"]
        assert all(line in " ".join(told.split()) for line in took["lost"])
    report = client.get("/api/take", params={**query, "target": "report"}).json()["text"]
    assert report.startswith("<!doctype html>")


def test_why_and_rules_and_comparison(client):
    why = client.get("/api/why", params={"gpus": "h100-80gb"}).json()["html"]
    assert 'id="ledger"' in why
    assert 'id="breakdown"' in why
    rules = client.get("/api/why", params={"about": "rules"}).json()["html"]
    assert "verdict, and why" in rules
    both = client.get("/api/compare", params={"other": "what=qlora&gpus=rtx-3090"}).json()["html"]
    assert "RTX 3090" in both
    assert "RTX 4090" in both


def test_every_gpu_side_by_side_until_nobody_listens(client):
    said = []
    with client.stream("POST", "/api/gpus", json={"model": "smollm2-135m"}) as response:
        for line in response.iter_lines():
            said.append(json.loads(line))
            if len(said) == 6:
                break
    assert said[0]["event"] == "table"
    offers = [event["offer"] for event in said[1:]]
    assert all(offer["verdict"] in {"FITS", "NO", "UNKNOWN", "TIGHT"} for offer in offers)
    assert client.get("/api/health").status_code == 200


def test_users_do_not_see_each_other(address):
    """Twenty ask at once, each another question: everyone gets the answer to their own."""
    wrong = []

    def ask(number):
        length = 256 * (number + 1)
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as own:
            part = own.post(
                "/api/estimate", json={"seq_len": str(length), "stage": "tensors"}
            ).json()["part"]
            if part["values"]["job"]["seq_len"] != length:
                wrong.append(length)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_who_has_gone_is_answered_no_more(address, client):
    """Two simulations are left at once; a third question does not wait for them."""
    for _ in range(2):
        with (
            pytest.raises(httpx.ReadTimeout),
            httpx.Client(base_url=address, trust_env=False) as own,
        ):
            own.post("/api/run", json={"verb": "simulate", "gpus": "8xh100-80gb",
                                       "model": "llama-3.1-70b"}, timeout=1.5)  # fmt: skip
    start = time.monotonic()
    with client.stream("POST", "/api/run", json={"verb": "estimate", **SHORT}) as response:
        lines = response.iter_lines()
        first = next(lines)
        assert time.monotonic() - start < 30  # a job that nobody ends takes 300
        every = [json.loads(line)["event"] for line in (first, *lines) if line]
        assert "answer" in every


def test_how_far_to_trust_it_is_a_page(client):
    page = client.get("/accuracy").text
    assert "predicted peak allocated" in page
    assert client.get("/accuracy", params={"lang": "zh"}).status_code == 200
    assert client.get("/accuracy", params={"lang": "xx"}).status_code == 400


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--host", "::"], "--allow-host"),
        (["--host", "::", "--allow-host", "*"], "every name"),
        (["--host", "::", "--allow-host", "*foo"], "no name of a host"),
        (["--host", "::", "--allow-host", "a.example,b.example:80"], "b.example:80 is no"),
        (["--allow-host", "*.*.example"], "no name of a host"),
        (["--host", "::1"], "127.0.0.1"),
        (["--port", "70000"], "no port"),
        (["--host", "203.0.113.7", "--allow-host", "a.example"], "cannot be listened at"),
    ],
)
def test_strangers_are_let_in_by_name_only(flags, why, capsys):
    assert main(["web", "--no-open", *flags]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


def test_the_server_loads_no_torch_and_nothing_that_computes():
    import subprocess
    import sys

    code = (
        "import sys; import brimful.web.app; "
        "print([m for m in ('torch', 'transformers', 'brimful.cost.estimate') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_space_starts_what_its_file_says():
    from brimful.cli import web
    from brimful.cli.main import parse

    file = Path(__file__).parents[2] / "deploy" / "space" / "Dockerfile"
    command = json.loads(file.read_text("utf-8").rpartition("CMD ")[2])
    assert command[:2] == ["brimful", "web"]
    args = parse("web", command[2:])
    web._check(args, args.allow_host.split(","))
    assert args.no_open
    assert f"EXPOSE {args.port}" in file.read_text("utf-8")
