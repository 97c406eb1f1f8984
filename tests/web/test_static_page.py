"""The page that needs no server: what it holds is what is computed, and it loads nothing."""

import re
from pathlib import Path

import pytest

from brimful.cli.main import main
from brimful.web import static_page as web_static
from brimful.web.static_page import AXES, Cell, cell_of, held_cells, states, static_page
from brimful.web.words import tables

PAGE = Path(__file__).parents[2] / "docs" / "web" / "llama-3.1-8b.html"
MOST_BYTES = 1_000_000


@pytest.fixture(scope="module")
def text():
    return PAGE.read_text("utf-8")


def test_the_page_of_the_docs_holds_what_is_computed(text):
    every, held = list(states("llama-3.1-8b")), held_cells(text)
    assert len(held) == len(every)
    for place in range(7, len(every), 149):
        assert held[place] == cell_of(every[place]), f"{every[place].given}: docs/generate_web.py"


@pytest.mark.long  # two minutes; nine answers are looked at above
def test_every_answer_of_the_docs_is_what_is_computed(text):
    for state, held in zip(states("llama-3.1-8b"), held_cells(text), strict=True):
        assert held == cell_of(state), state.given


def test_the_page_of_the_docs_is_as_it_would_be_set_now(text):
    assert static_page("llama-3.1-8b", held_cells(text)) == text, "docs/generate_web.py --again"


def test_it_is_small_and_loads_nothing(text):
    assert len(text.encode("utf-8")) < MOST_BYTES
    assert not re.findall(r'(?:src|href)="(?!#|data:,)[^"]*"', text)
    assert "fetch(" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_what_it_holds_is_told_apart(text):
    held = held_cells(text)
    assert {cell.verdict for cell in held if isinstance(cell, Cell)} == {"FITS", "TIGHT", "NO"}
    assert all(isinstance(cell, Cell) for cell in held)


def test_a_refusal_is_kept_with_its_reason():
    cells = ["no such thing"] * len(list(states("llama-3.1-8b")))
    assert held_cells(static_page("llama-3.1-8b", cells)) == cells


def test_its_script_says_what_it_was_given():
    script = (PAGE.parents[2] / "src/brimful/web/assets/static.js").read_text("utf-8")
    said = set(re.findall(r'say\("([\w.]+)"\)', script))
    strings = tables()["en"]
    given = set(
        re.findall(r'"([\w.]+)"', Path(static_page.__code__.co_filename).read_text("utf-8"))
    )
    assert said <= set(strings)
    assert said <= given
    assert set(AXES) >= set(re.findall(r"^    (\w+): \"(?:form|field)", script, re.MULTILINE))


def test_names_of_files_are_refused(capsys, tmp_path):
    assert main(["web", "--static", "../secret.json", "-o", str(tmp_path / "a.html")]) == 2
    assert "reads no file" in capsys.readouterr().err
    assert main(["web", "-o", str(tmp_path / "a.html")]) == 2
    assert "--static" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_writes_a_page_of_the_model_that_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(web_static, "cell_of", lambda state: f"of {state.given['model']}")
    path = tmp_path / "page.html"
    assert main(["web", "--static", "Qwen/Qwen3-8B", "-o", str(path)]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: ")
    text = path.read_text("utf-8")
    assert set(held_cells(text)) == {"of qwen3-8b"}
    assert "<title>qwen3-8b: does it fit?</title>" in text
