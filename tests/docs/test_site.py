"""The site builds strictly and fetches nothing; no link in it or in a page is dead."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from each_case import each

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]
    if ".venv" not in path.parts
)
_LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


class Read(HTMLParser):
    """What a page of the site points to, what can be pointed to in it, and what it loads."""

    def __init__(self, path):
        super().__init__()
        self.links, self.names, self.loads = [], set(), []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.names |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in {"script", "img", "iframe"} and values.get("src"):
            self.loads.append(values["src"])
        if tag == "link" and values.get("rel") in {"stylesheet", "preconnect", "icon"}:
            self.loads.append(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_link_of_the_site_leads_somewhere(site):
    pages = {path: Read(path) for path in site.rglob("*.html")}
    assert len(pages) > 60
    dead = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are of the address that it will be served under
            continue
        for link in [*page.links, *page.loads]:
            split = urlsplit(link)
            if split.scheme or link.startswith("//"):
                continue
            target = (path.parent / unquote(split.path)).resolve() if split.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                dead.append(f"{path.name}: {link}")
                continue
            names = pages[target].names if target in pages else set()
            if split.fragment and names and unquote(split.fragment) not in names | {"__top"}:
                dead.append(f"{path.name}: {link}")
    assert not dead


def test_the_site_loads_nothing_from_elsewhere(site):
    for path in site.rglob("*.html"):
        loads = Read(path).loads
        assert not [each for each in loads if urlsplit(each).netloc], path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", path.read_text("utf-8")), path


def test_the_reference_has_units(site):
    text = (site / "api.html").read_text("utf-8")
    for name in (
        "brimful.pretend.session.gpu",
        "brimful.values.job.Job",
        "brimful.values.plan.Estimate",
    ):
        assert f'id="{name}"' in text
    assert "peak_allocated_bytes" in text


def anchors(path):
    """Return the anchors that a code host gives a page's headings."""
    text = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower().strip() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


@each("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page):
    """As a code host shows it: relative paths, anchors of headings."""
    dead = []
    for link in _LINK.findall(_CODE.sub("", page.read_text("utf-8"))):
        split = urlsplit(link)
        if split.scheme:
            continue
        target = (page.parent / unquote(split.path)).resolve() if split.path else page
        generated = target == ROOT / "docs" / "decisions" / "index.md"
        if generated:
            continue
        named = not split.fragment or target.suffix != ".md"
        if not target.exists() or not (named or split.fragment in anchors(target)):
            dead.append(link)
    assert not dead
