"""Whether evidence was made from sources that anyone can check out: a clean commit of this history.

``unclean.toml`` lists what was not, each with the reason that it is kept; it must shrink.
"""

import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).parent
KNOWN = HERE / "unclean.toml"


def known() -> dict[str, str]:
    """Read what is known not to be clean: name of the file, and why it is kept."""
    return {name: entry["why"] for name, entry in tomllib.loads(KNOWN.read_text("utf-8")).items()}


def unclean(folder: Path = HERE) -> dict[str, str]:
    """Say what is wrong with evidence that was not made from a clean commit of this history.

    Args:
        folder: Of the evidence files.
    """
    made = {path.stem: _provenance(path) for path in sorted(folder.glob("*.json"))}
    found = {name: _wrong(one) for name, one in made.items()}
    return {name: what for name, what in found.items() if what}


def _provenance(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(path.read_bytes())["provenance"]
    return found


def _wrong(made: dict[str, Any]) -> str:
    if made["is_dirty"]:
        return "made with changes that were not committed"
    if has_history() and not is_ancestor(made["commit"]):
        return f"made at {made['commit'][:10]}, which is not in this history"
    return ""


@cache
def has_history() -> bool:
    """Tell whether all commits are here: not in a shallow clone, nor in a tarball."""
    inside = _git("rev-parse", "--show-toplevel")
    if inside is None or Path(inside).resolve() != HERE.parent.resolve():
        return False
    return _git("rev-parse", "--is-shallow-repository") == "false"


def is_ancestor(commit: str) -> bool:
    """Tell whether a commit is HEAD's or one before it."""
    return _git("merge-base", "--is-ancestor", commit, "HEAD") is not None


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(HERE), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - fixed
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
