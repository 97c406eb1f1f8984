import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_the_command_line_is_up_to_date(monkeypatch):
    monkeypatch.setenv("COLUMNS", "37")
    page = runpy.run_path(str(DOCS / "generate_cli.py"))["page"]()
    assert (DOCS / "cli.md").read_text("utf-8") == page, "run python docs/generate_cli.py"
    assert max(map(len, page.splitlines())) <= 100
