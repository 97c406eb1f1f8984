"""What a forge reads is sound, and says what the rest of the project says."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = (
    "CITATION.cff", ".pre-commit-config.yaml", ".github/workflows/ci.yml",
    *(str(path.relative_to(ROOT)) for path in ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")),
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_it_is_yaml(name):
    assert isinstance(yaml.safe_load((ROOT / name).read_text()), dict)


def test_what_is_cited_and_pinned_is_what_is_here():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version("brimful")
    pinned = re.search(r"^ruff==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    (ruff,) = [each["rev"] for each in hooks if each["repo"].endswith("ruff-pre-commit")]
    assert ruff == f"v{pinned[1]}"


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", ".github/workflows/ci.yml"])
def test_what_it_says_to_make_can_be_made(name):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    asked = re.findall(r"(?:`|run: |^)make ([a-z-]+)", (ROOT / name).read_text(), re.MULTILINE)
    assert asked
    assert set(asked) <= set(targets)
