"""The packages: how large they are, how fast the core is installed, and that it needs no torch."""

import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from evidence import Summary
from progress import shown
from site_rows import PackageRow

from brimful.cli.output import BAD_INPUT

ROOT = Path(__file__).parents[1]
CODE_BAR, INSTALL_BAR_S = 2 * 10**6, 15.0
COMMANDS = (
    ("estimate", "llama-3.1-8b", "--gpus", "h200"),
    ("plan", "llama-3.1-8b", "--gpus", "8xh100-80gb", "--global-batch", "64"),
    ("gpus",),
    ("validate",),
)
WITHOUT_TORCH = ("simulate", "tinyllama-1.1b", "--gpus", "a100-40gb")
"""What says that it needs the extra, and which."""
_TIMEOUT_S = 300


def run(*, seed: int, quick: bool) -> tuple[list[PackageRow], Summary]:
    """Build, install, run; nothing is drawn."""
    del seed
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        wheel, source = _build(folder)
        commands = COMMANDS[:1] if quick else (*COMMANDS, WITHOUT_TORCH)
        rows = _installed(wheel, folder / "fresh", commands)
        rows.append(_row(source))
    return rows, summarize(rows)


def every_command() -> list[str]:
    """Spell what is run in the fresh environment."""
    return [_spelled(command) for command in (*COMMANDS, WITHOUT_TORCH)]


def _spelled(command: tuple[str, ...]) -> str:
    return " ".join(("brimful", *command))


def _build(folder: Path) -> tuple[Path, Path]:
    tools = _environment(folder / "tools")
    _call(str(tools / "pip"), "install", "-q", "build")
    _call(str(tools / "python"), "-m", "build", "-o", str(folder / "dist"), str(ROOT))
    (wheel,) = (folder / "dist").glob("*.whl")
    (source,) = (folder / "dist").glob("*.tar.gz")
    return wheel, source


def _environment(folder: Path) -> Path:
    _call(sys.executable, "-m", "venv", str(folder))
    return folder / "bin"


def _call(*words: str) -> str:
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)  # noqa: S603 - our own words
    return done.stdout


def _installed(
    wheel: Path, folder: Path, commands: tuple[tuple[str, ...], ...]
) -> list[PackageRow]:
    tools = _environment(folder)
    begun = time.perf_counter()
    _call(str(tools / "pip"), "install", "-q", "--disable-pip-version-check", str(wheel))
    install_s = time.perf_counter() - begun
    listed = _call(str(tools / "pip"), "list", "--format=freeze", "--disable-pip-version-check")
    packages = tuple(line.replace("==", " ") for line in listed.splitlines())
    return [
        _row(wheel, install_s=install_s, packages=packages, tools=tools, command=command)
        for command in shown("commands of the core", commands)
    ]


def _row(
    file: Path,
    *,
    install_s: float | None = None,
    packages: tuple[str, ...] = (),
    tools: Path | None = None,
    command: tuple[str, ...] = (),
) -> PackageRow:
    said, code = "", None
    if tools is not None:
        words = [str(tools / "brimful"), *command]
        done = subprocess.run(  # noqa: S603 - our own words
            words, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
        said, code = (done.stdout + done.stderr).strip().splitlines()[-1], done.returncode
    return PackageRow(
        file=file.name,
        num_bytes=file.stat().st_size,
        code_bytes=_code_bytes(file) if file.suffix == ".whl" else None,
        install_s=install_s,
        packages=packages,
        command=_spelled(command) if command else "",
        said=said,
        exit_code=code,
    )


def _code_bytes(wheel: Path) -> int:
    with zipfile.ZipFile(wheel) as package:
        return sum(
            part.compress_size
            for part in package.infolist()
            if not part.filename.startswith("brimful/data/")
        )


def summarize(rows: list[PackageRow]) -> Summary:
    """Sum up, and say what misses its bar."""
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(),
        bars=(
            f"the wheel's code at most {CODE_BAR / 1e6:g} MB",
            f"installed in at most {INSTALL_BAR_S:g} s",
            "commands of the core end with 0 or 1 without torch, the others say what to install",
        ),
        missed=tuple(filter(None, map(_missed, rows))),
    )


def _missed(row: PackageRow) -> str:
    if row.code_bytes is not None and row.code_bytes > CODE_BAR:
        return f"{row.file}: {row.code_bytes} bytes of code"
    if row.install_s is not None and row.install_s > INSTALL_BAR_S:
        return f"{row.file}: installed in {row.install_s:.1f} s"
    if any(package.startswith("torch ") for package in row.packages):
        return f"{row.file}: brings torch"
    if not row.command:
        return ""
    needs_more = row.command == _spelled(WITHOUT_TORCH)
    fine = _asks_for_more(row) if needs_more else row.exit_code in (0, 1)
    return "" if fine else f"{row.command} ended with {row.exit_code}: {row.said}"


def _asks_for_more(row: PackageRow) -> bool:
    return row.exit_code == BAD_INPUT and "[train]" in row.said
