"""The page that says where a change belongs names what is there."""

import re
from pathlib import Path

from each_case import each

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PATHS = sorted(set(re.findall(r"[a-z_]+(?:/[a-z_]+)*(?:\.py|/)(?![a-z])", PAGE)))


def test_the_page_names_many():
    assert len(PATHS) > 50


@each("path", PATHS)
def test_what_the_page_names_is_there(path):
    assert (ROOT / path).exists() or (ROOT / "src" / "brimful" / path).exists()
