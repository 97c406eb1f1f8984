"""Programs of others as they are, on the pretend GPU, against arithmetic that was written before.

They run in an environment of their own: Brimful's core, this torch, and versions of their own
packages. Each is run with Triton's wheel, with what stands for it, and without either.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec
from evidence import Summary, relative, spread_of
from exporters_site import make_environment
from program_rows import DerivedItem, ProgramRow
from programs_by_hand import DERIVED as OF_KERNELS
from programs_by_hand import FLASH, LOSSES, sizes_of
from programs_of_optimizers import DERIVED as OF_OPTIMIZERS
from programs_of_optimizers import GALORE_RANK, OPTIMIZERS, SIZES_OF
from progress import shown

from brimful.pretend.report_values import PretendReport

SITE = "BRIMFUL_PROGRAM_SITE"
"""A variable that may name a folder where the environment is kept from one proof to the next."""
CARD = "h100-80gb"
BAR = 0.02
_ROOT = Path(__file__).parents[1]
_SCRIPTS = Path(__file__).parent / "programs"
_TRITON = "triton==3.9.0"
_PACKAGES = (
    "transformers==5.23.0", "peft==0.21.2", "trl==1.16.0", "datasets==5.2.0",
    "bitsandbytes==0.50.2",
)  # fmt: skip
_WITHOUT_THEIR_OWN = (
    "liger-kernel==0.8.5", "galore-torch==1.0", "lightning==2.6.6", "pytorch-lightning==2.6.6",
    "lightning-utilities==0.15.3", "torchmetrics==1.9.0",
)  # fmt: skip
"""Packages that would bring Triton, or another torch, along."""
_TIMEOUT_S = 300


DERIVED = {**OF_KERNELS, **OF_OPTIMIZERS}


class Site(NamedTuple):
    """The environment of the programs.

    Attributes:
        python: Its interpreter, without Triton.
        triton: A folder that has Triton.
    """

    python: Path
    triton: Path


class Program(NamedTuple):
    """A script of ``programs`` and what it is told.

    Attributes:
        script: Its file.
        before: Arguments before the sizes.
        after: Arguments behind them.
        assumed: Packages that no environment without CUDA can have, stood in for in every run.
    """

    script: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


PROGRAMS = {
    "liger_llama": Program("liger_step.py", ("llama",)),
    "liger_qwen3": Program("liger_step.py", ("qwen3",)),
    "liger_gemma": Program("liger_step.py", ("gemma",)),
    "trl_sft": Program("trl_sft.py"),
    "liger_lora": Program("liger_step.py", ("llama",), ("16",)),
    "liger_lora_longer": Program("liger_step.py", ("llama",), ("16",)),
    **{name: Program("liger_losses.py", (name,)) for name in LOSSES},
    "autotuned": Program("autotuned.py"),
    **{name: Program("paged_step.py", (kind,)) for name, kind in OPTIMIZERS.items()},
    "galore": Program("galore_step.py", after=(str(GALORE_RANK),)),
    "lightning": Program("lightning_step.py"),
    "lightning_longer": Program("lightning_step.py"),
    **{name: Program("flash_step.py", (name,), assumed=("flash-attn",)) for name in FLASH},
}
OVERLOOKED = {
    "liger_lora": "the forward of the last down_proj, which is higher: B's output twice in fp32, "
    "the bf16 product, and what frames above still name",
    "lightning": "that cross_entropy hands its input's type to log_softmax, whose result is bf16",
}


def run(*, seed: int, quick: bool) -> tuple[list[ProgramRow], Summary]:
    """Make the environment and run every program in it; nothing is drawn."""
    del seed
    names = list(DERIVED)[:1] if quick else list(DERIVED)
    with tempfile.TemporaryDirectory() as made:
        site = _site(Path(os.environ.get(SITE) or made))
        rows = [_row(site, name) for name in shown("programs of others", names)]
    return rows, summarize(rows)


def _site(folder: Path) -> Site:
    site = Site(folder / "programs" / "bin" / "python", folder / "triton")
    if not site.triton.is_dir():
        make_environment(folder / "programs", (*_PACKAGES, "-e", str(_ROOT)))
        pip = [str(site.python), "-m", "pip", "install", "-q", "--no-deps"]
        for more in (_WITHOUT_THEIR_OWN, ("--target", str(site.triton), _TRITON)):
            subprocess.run([*pip, *more], check=True)  # noqa: S603 - fixed
    return site


def arguments_of(name: str) -> tuple[str, ...]:
    """Spell what a program is told."""
    program, sizes = PROGRAMS[name], SIZES_OF.get(name) or sizes_of(name)
    return (*program.before, *map(str, sizes), *program.after)


def _row(site: Site, name: str) -> ProgramRow:
    with_wheel = _pretend(site, name, {"PYTHONPATH": str(site.triton)})
    stand_in = _pretend(site, name, {}, "triton")
    without = _pretend(site, name, {})
    assert with_wheel is not None, f"{name} did not run"
    assert stand_in is not None, f"{name} did not run with the stand-in"
    derived = tuple(DerivedItem(name=i.name, num_bytes=i.num_bytes) for i in DERIVED[name]())
    by_hand = sum(item.num_bytes for item in derived)
    said = with_wheel.simulated_peak_allocated_bytes
    return ProgramRow(
        program=name,
        script=PROGRAMS[name].script,
        arguments=arguments_of(name),
        card=CARD,
        packages=_installed(site),
        derived=derived,
        derived_peak_bytes=by_hand,
        simulated_peak_allocated_bytes=said,
        stand_in_peak_allocated_bytes=stand_in.simulated_peak_allocated_bytes,
        without_peak_allocated_bytes=without and without.simulated_peak_allocated_bytes,
        assumed=PROGRAMS[name].assumed,
        peak_error=relative(said, by_hand),
        launched=tuple(
            f"{kernel.kernel} {kernel.num_launches}" for kernel in with_wheel.beside_torch.launched
        ),
        overlooked=OVERLOOKED.get(name, ""),
    )


def _pretend(
    site: Site, name: str, environment: dict[str, str], *assumed: str
) -> PretendReport | None:
    """Run a program; None: it ended with an error of its own."""
    flags = [f"--assume={package}" for package in (*PROGRAMS[name].assumed, *assumed)]
    words = ["-m", "brimful", "pretend", "--gpu", CARD, "--json", *flags, "--"]
    script = [str(_SCRIPTS / PROGRAMS[name].script), *arguments_of(name)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(  # noqa: S603 - our own command
            [str(site.python), *words, *script],
            check=False,
            capture_output=True,
            cwd=folder,
            env={**os.environ, "TRITON_CACHE_DIR": folder, **environment},
            timeout=_TIMEOUT_S,
        )
        kept = list(Path(folder).rglob("*.autotune.json"))
    assert not kept, f"{name} left results of trials that never ran on disk"
    return msgspec.json.decode(done.stdout, type=PretendReport) if done.stdout else None


def _installed(site: Site) -> tuple[str, ...]:
    names = (
        "torch", "transformers", "peft", "trl", "liger-kernel", "triton", "bitsandbytes",
        "galore-torch", "lightning",
    )  # fmt: skip
    code = "import json,sys\nfrom importlib.metadata import version as v\n"
    code += "print(json.dumps([f'{name} {v(name)}' for name in sys.argv[1:]]))"
    done = subprocess.run(  # noqa: S603 - our own command
        [str(site.python), "-c", code, *names],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(site.triton)},
    )
    return tuple(json.loads(done.stdout))


def summarize(rows: list[ProgramRow]) -> Summary:
    """Sum up, and say which programs miss the bar."""
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread_of("peak", [row.peak_error for row in rows]),),
        bars=(
            f"each peak within {BAR:.0%} of what was derived by hand",
            "with what stands for Triton to the byte as with its wheel",
        ),
        missed=tuple(filter(None, map(_missed, rows))),
        findings=tuple(
            f"{row.program}: derived without {row.overlooked}" for row in rows if row.overlooked
        ),
    )


def _missed(row: ProgramRow) -> str:
    if abs(row.peak_error) > BAR:
        return f"{row.program}: {row.peak_error:+.2%}"
    if row.stand_in_peak_allocated_bytes != row.simulated_peak_allocated_bytes:
        return f"{row.program}: {row.stand_in_peak_allocated_bytes} bytes with the stand-in"
    return ""
