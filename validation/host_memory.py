"""Host memory of real runs on a CPU, phase by phase, beside what is predicted; and checkpoints.

``python validation/host_memory.py [--quick] [--out FILE]``

Every case is a run of the trainer in a process of its own, which Linux tells its highest resident
size (``VmHWM``); that is read and forgotten whenever the run says that it goes on to another phase.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from provenance import Watch, provenance

from brimful.cost.estimate import estimate
from brimful.cost.host import HAND_OVER, STEPS, SaveMode
from brimful.files.writing import write_bytes
from brimful.hardware.cluster import Cluster
from brimful.models.config import read_config
from brimful.values.job import Job, plain_job
from brimful.values.plan import PLAN_SCHEMA, HostMemory, Plan, read_plan, write_yaml
from brimful.values.results import LOAD, RESUME, SAVE
from brimful.values.strategy import Strategy

ROOT = Path(__file__).parents[1]
SCHEMA = "brimful.host-memory/1"
OUT = ROOT / "validation" / "host_memory.json"
NUM_STEPS, SAVE_EVERY, NUM_EVAL_TOKENS = 5, 2, 256
DISK_BAR = 0.01
"""Of a checkpoint's bytes."""
_LLAMA = {
    "model_type": "llama",
    "hidden_size": 640,
    "intermediate_size": 1792,
    "num_hidden_layers": 6,
    "num_attention_heads": 10,
    "num_key_value_heads": 10,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
_GPT2 = {
    "model_type": "gpt2",
    "n_embd": 640,
    "n_layer": 6,
    "n_head": 10,
    "vocab_size": 1024,
    "n_positions": 512,
    "bos_token_id": None,
    "eos_token_id": None,
}
_COPIED = (STEPS, SAVE, HAND_OVER)
"""Phases in which the copy for saving in the background is there."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A case; ``starts_from`` names the case whose model or checkpoint it begins with."""

    name: str
    changes: dict[str, Any]
    config: dict[str, Any]
    saving: SaveMode = "sync"
    starts_from: str = ""
    resumes: bool = False


CASES = (
    Asked(name="llama fp32", changes={"precision": "fp32"}, config=_LLAMA),
    Asked(name="llama fp32 async", changes={"precision": "fp32"}, config=_LLAMA, saving="async"),
    Asked(name="llama fp32 resumed", changes={"precision": "fp32"}, config=_LLAMA,
          starts_from="llama fp32", resumes=True),
    Asked(name="llama bf16 from weights", changes={"precision": "bf16"}, config=_LLAMA,
          starts_from="llama fp32"),
    Asked(name="llama bf16-mixed async", changes={}, config=_LLAMA, saving="async"),
    Asked(name="llama bf16-master", changes={"precision": "bf16-master"}, config=_LLAMA),
    Asked(name="llama bf16-master async", changes={"precision": "bf16-master"}, config=_LLAMA,
          saving="async"),
    Asked(name="gpt2 bf16-mixed", changes={}, config=_GPT2),
    Asked(name="gpt2 sgd async", changes={"optimizer": "sgd", "precision": "fp32"}, config=_GPT2,
          saving="async"),
)  # fmt: skip


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What was predicted of a case and what was measured; bytes by phase, errors of the peak.

    Attributes:
        name: Of the case.
        saving: How checkpoints were written.
        predicted: Of a process, by phase: exact items with processes at their low end.
        predicted_host_bytes: The band for the peak, background saving included.
        measured: Highest resident bytes, by phase.
        started_bytes: Resident before the model was built: the process and its libraries.
        predicted_checkpoint_bytes: On disk.
        measured_checkpoint_bytes: On disk.
    """

    name: str
    saving: SaveMode
    predicted: dict[str, int]
    predicted_host_bytes: tuple[float, float]
    measured: dict[str, int]
    started_bytes: int
    predicted_checkpoint_bytes: int
    measured_checkpoint_bytes: int

    @property
    def is_within(self) -> bool:
        """Whether the measured peak lies in the band."""
        low, high = self.predicted_host_bytes
        return low <= max(self.measured.values()) <= high

    @property
    def disk_error(self) -> float:
        """Relative, signed."""
        return self.predicted_checkpoint_bytes / self.measured_checkpoint_bytes - 1


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker saw."""

    peaks: dict[str, int]
    started_bytes: int


class Probe:
    """Watches a run, and reads the highest resident size at the end of every phase."""

    def __init__(self) -> None:
        """Begin."""
        self.peaks: dict[str, int] = {}
        self.started_bytes = 0

    def _ended(self, phase: str) -> None:
        import torch

        from brimful.train.memory import peak_bytes, reset_peak, used_bytes

        device = torch.device("cpu")
        if phase:
            self.peaks[phase] = max(self.peaks.get(phase, 0), peak_bytes(device))
        else:
            self.started_bytes = used_bytes(device)
        reset_peak(device)

    def on_stage(self, text: str) -> None:
        """Preparing data is over before the model is built."""
        if text != "reading the data":
            self._ended("" if text == "building the model" else LOAD)

    def on_step(self, _report: Any) -> None:
        """A step is over."""
        self._ended(STEPS)

    def on_eval(self, _row: Any) -> None:
        """Held-out batches are judged within what a step takes."""
        self._ended(STEPS)

    def on_checkpoint(self, _step: int, _path: Path) -> None:
        """A checkpoint is whole."""
        self._ended(SAVE)

    def on_message(self, _text: str) -> None:
        """The run says how it ended behind its hand-over."""
        if SAVE in self.peaks:
            self._ended(HAND_OVER)

    def close(self) -> None:
        """Nothing to close."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker runs."""

    plan: str
    out: str
    data: str
    cache: str
    saving: SaveMode
    resumes: bool


def work(request: Request) -> Measured:
    """Run a plan and watch it."""
    from brimful.process.library_output import quiet_libraries

    quiet_libraries()
    from brimful.train.loop import train
    from brimful.train.metering import NullMeter
    from brimful.train.settings import plain_settings

    settings = plain_settings(
        out=Path(request.out),
        data=Path(request.data),
        cache=Path(request.cache),
        resume=request.resumes,
        checkpoint=request.saving,
        checkpoint_every_steps=SAVE_EVERY,
        eval_every_steps=SAVE_EVERY,
        num_eval_tokens=NUM_EVAL_TOKENS,
    )
    probe = Probe()
    train(read_plan(Path(request.plan)), settings, observer=probe, meter=NullMeter())
    return Measured(peaks=probe.peaks, started_bytes=probe.started_bytes)


def measure(asked: Asked, folder: Path, cluster: Cluster) -> Row:
    """Predict a case, run it in another process, and lay the two side by side."""
    job, strategy = job_of(asked, folder), strategy_of()
    predicted = estimate(job, cluster, strategy)
    assert predicted.host is not None
    out = folder / asked.name
    plan = Plan(schema=PLAN_SCHEMA, job=job, cluster=cluster, strategy=strategy, estimate=predicted)
    path = folder / f"{asked.name}.yaml"
    if asked.resumes:
        shutil.copytree(folder / asked.starts_from, out)
        shutil.rmtree(max((out / "checkpoints").glob("step-*")))
        plan = read_plan(out / "plan.yaml")
    write_yaml(plan, path)
    request = Request(
        plan=str(path),
        out=str(out),
        data=str(folder / "text.txt"),
        cache=str(folder / "cache"),
        saving=asked.saving,
        resumes=asked.resumes,
    )
    command = [sys.executable, __file__, "--worker"]
    done = subprocess.run(  # noqa: S603 - this very file
        command, input=msgspec.json.encode(request), capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{asked.name}: {done.stderr.decode()[-2000:]}")
    seen = msgspec.json.decode(done.stdout.splitlines()[-1], type=Measured)
    return _row(asked, predicted.host, seen, out)


def _row(asked: Asked, host: HostMemory, seen: Measured, out: Path) -> Row:
    added = host.predicted_async_bytes * (asked.saving == "async")
    band = host.predicted_host_bytes
    newest = max((out / "checkpoints").glob("step-*"))
    renamed = {LOAD: RESUME} if asked.resumes else {}
    return Row(
        name=asked.name,
        saving=asked.saving,
        predicted={p.phase: p.num_bytes + added * (p.phase in _COPIED) for p in host.phases},
        predicted_host_bytes=(band.low + added, band.high + added),
        measured={renamed.get(phase, phase): num for phase, num in seen.peaks.items()},
        started_bytes=seen.started_bytes,
        predicted_checkpoint_bytes=host.predicted_checkpoint_bytes,
        measured_checkpoint_bytes=sum(f.stat().st_size for f in newest.iterdir()),
    )


def job_of(asked: Asked, folder: Path) -> Job:
    """Return the job of a case."""
    fields: dict[str, Any] = {
        "model": read_config(asked.name.replace(" ", "-").replace(",", ""), asked.config),
        "precision": "bf16-mixed",
        "seq_len": 64,
        "global_batch": 2,
        "num_steps": NUM_STEPS,
        "learning_rate": 1e-4,
        **asked.changes,
    }
    if asked.starts_from and not asked.resumes:
        fields["weights"] = str(folder / asked.starts_from / "model")
    return plain_job(**fields)


def strategy_of() -> Strategy:
    """Return how every case is run."""
    return Strategy(micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention="sdpa")


def main() -> int:
    """Measure, print and write; the exit code says whether the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="the first two cases")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if args.worker:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
        print(msgspec.json.encode(work(request)).decode())
        return 0
    from brimful.hardware.gpus import load_cluster

    watch, cluster = Watch(), load_cluster("local", memory_limit_bytes=None)
    with tempfile.TemporaryDirectory() as folder:
        text = "\n\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
        (Path(folder) / "text.txt").write_text(text, "utf-8")
        rows = []
        for asked in CASES[:2] if args.quick else CASES:
            rows.append(measure(asked, Path(folder), cluster))
            print(_line(rows[-1]), flush=True)
    content = {"schema": SCHEMA, "provenance": provenance(watch, seed=0), "rows": rows}
    write_bytes(args.out, msgspec.json.format(msgspec.json.encode(content)))
    return int(not all(row.is_within and abs(row.disk_error) <= DISK_BAR for row in rows))


def _line(row: Row) -> str:
    phases = "  ".join(
        f"{phase} {row.predicted[phase] / 1e6:.0f}/{num / 1e6:.0f}"
        for phase, num in row.measured.items()
    )
    low, high = row.predicted_host_bytes
    return (
        f"{row.name:32} started {row.started_bytes / 1e6:.0f}  {phases} MB  band "
        f"{low / 1e6:.0f}-{high / 1e6:.0f}  disk {row.disk_error:+.3%}"
    )


if __name__ == "__main__":
    sys.exit(main())
