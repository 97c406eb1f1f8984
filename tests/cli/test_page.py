"""``--page``: the answer of a verb as a page and as one picture, beside what is printed."""

import json

import pytest

from brimful.cli.main import main

TINY = ["llama-3.2-1b", "--gpus", "rtx-4090", "--seq-len", "1024", "--method", "lora"]


def asked(verb):
    return [verb, *TINY, *(["--no-proof"] if verb == "plan" else [])]


@pytest.mark.few
@pytest.mark.parametrize("verb", ["estimate", "plan"])
@pytest.mark.parametrize("suffix", [".html", ".svg"])
def test_the_page_says_what_the_terminal_says(verb, suffix, tmp_path, capsys):
    page = tmp_path / f"answer{suffix}"
    assert main([*asked(verb), "--page", str(page)]) == 0
    memory = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("memory")
    )
    text = page.read_text("utf-8")
    assert memory.split("░")[-1].split("█")[-1].strip() in text
    assert f"$ brimful {verb} llama-3.2-1b" in text
    assert ("In full" in text) is (suffix == ".html")


def test_another_kind_of_file_is_refused_before_the_work(tmp_path, capsys):
    assert main([*asked("plan"), "--page", str(tmp_path / "answer.pdf")]) == 2
    said = capsys.readouterr()
    assert "must end in .html or .svg" in said.err
    assert not said.out


def test_a_page_is_written_beside_json(tmp_path, capsys):
    page = tmp_path / "answer.html"
    asked = ["estimate", "llama-3.2-1b", "--gpus", "rtx-4090", "--task", "inference"]
    assert main([*asked, "--json", "--page", str(page)]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True
    assert "llama-3.2-1b in bf16" in page.read_text("utf-8")
