"""What mkdocs does not do by itself: pages that lie outside docs/, and links that lead there.

The pages of docs/ are read on a code host as well, so that they link to ``../DESIGN.md`` or to a
folder. On the site, files of ``OUTSIDE`` are pages, the decisions have an index, and a link to any
other file of the repository becomes plain text. A link to what does not exist is left as it is, and
the strict build refuses it. Nothing here fetches anything.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = {
    "README.md": "project/readme.md",
    "DESIGN.md": "project/design.md",
    "CHANGELOG.md": "project/changelog.md",
    "LOG.md": "project/log.md",
    "examples/README.md": "project/examples.md",
    "validation/README.md": "project/validation.md",
    "benchmarks/gpu/README.md": "project/gpu-benchmarks.md",
}
"""File of the repository: its page of the site."""
INDEX = "decisions/index.md"
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text("utf-8")))
    files.append(File.generated(config, INDEX, content=decisions_index()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Return the page with its links to the rest of the repository rewritten."""
    place = source_of(page.file.src_uri)
    blocks = _FENCED.findall(markdown)
    parts = [
        _LINK.sub(lambda found: rewritten(found, place, page.file.src_uri), part)
        for part in _FENCED.split(markdown)
    ]
    return "".join(part + block for part, block in zip(parts, [*blocks, ""], strict=True))


def source_of(page: str) -> str:
    """Return the path in the repository of what a page of the site shows."""
    for path, shown in OUTSIDE.items():
        if shown == page:
            return path
    return f"docs/{page}"


def page_of(path: str) -> str | None:
    """Return the page of the site that shows a file or folder of the repository, if any."""
    if path == "docs/decisions":
        return INDEX
    for name in (path, f"{path}/README.md"):
        if name in OUTSIDE:
            return OUTSIDE[name]
    if path.startswith("docs/") and (ROOT / path).is_file() and not path.endswith(".py"):
        return path.removeprefix("docs/")
    return None


def rewritten(found: re.Match[str], place: str, page: str) -> str:
    """Return one link as the site has it: to a page, or its text alone."""
    text, target = found.groups()
    path, _, anchor = target.partition("#")
    if "://" in target or target.startswith("mailto:") or not path:
        return found.group()
    resolved = os.path.normpath(Path(place).parent / path)
    shown = page_of(resolved)
    if shown is not None:
        link = os.path.relpath(shown, Path(page).parent)
        return f"[{text}]({link}{'#' + anchor if anchor else ''})"
    return text if (ROOT / resolved).exists() else found.group()


def decisions_index() -> str:
    """Return the list of decisions, by number."""
    lines = ["# Decisions", "", "Why it is so and not otherwise, a page each.", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        title = path.read_text("utf-8").splitlines()[0].lstrip("# ").strip()
        lines.append(f"- [{title}]({path.name})")
    return "\n".join([*lines, ""])
