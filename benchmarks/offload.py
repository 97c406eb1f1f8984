"""What offload costs a step, predicted and measured: ``benchmarks/offload.py [--json FILE]``.

Steps of one program without offload and with each kind in turns, on one thread, in seconds of the
process's own CPU time: the median of their differences. Predicted from the bytes that the simulated
step copies and the rate at which this machine copies, measured by calibration's own kernels. Freed
memory is kept by the process, as allocators of GPUs keep theirs. Exit code 1: a bar was missed.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from brimful.files.writing import write_bytes
from brimful.process.library_output import quiet_libraries
from brimful.process.versions import versions

quiet_libraries()

import torch  # noqa: E402

from brimful.build.assemble import build_program  # noqa: E402
from brimful.build.batch import Batch, count_targets  # noqa: E402
from brimful.build.step import train_step  # noqa: E402
from brimful.hardware.cluster import Cluster, Device, MatrixRates  # noqa: E402
from brimful.measure.kernels import kernels  # noqa: E402
from brimful.models.config import read_config  # noqa: E402
from brimful.simulate.attempt import attempt  # noqa: E402
from brimful.values.job import Job, plain_job  # noqa: E402
from brimful.values.strategy import Strategy  # noqa: E402

OFFLOAD_SPEED_SCHEMA = "brimful.offload-speed/1"
BAR = 0.25
NUM_TURNS, NUM_ROUNDS = 15, 7
_KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**33), "MALLOC_TRIM_THRESHOLD_": str(2**36)}
"""glibc gives freed memory back to the system, which maps it anew, page fault by page fault."""
_CPU = torch.device("cpu")
Run = Callable[[], None]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A program whose copies weigh something: few tokens, or much that is kept of them."""

    offload: str
    width: int
    seq_len: int
    num_sequences: int
    attention: str = "sdpa"


ASKED = (
    Asked(offload="optimizer", width=1536, seq_len=16, num_sequences=1),
    Asked(offload="parameters", width=1536, seq_len=16, num_sequences=1),
    Asked(offload="activations", width=128, seq_len=512, num_sequences=4, attention="eager"),
    Asked(offload="parameters:3,activations:3", width=1536, seq_len=64, num_sequences=1),
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of offload.

    Attributes:
        offload: What is kept on the host.
        plain_s: CPU seconds of a step without it.
        predicted_s: What it should cost a step.
        measured_s: What it costs.
    """

    offload: str
    plain_s: float
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Relative, signed."""
        return self.predicted_s / self.measured_s - 1


def _job(asked: Asked) -> Job:
    config = {
        "model_type": "llama",
        "hidden_size": asked.width,
        "intermediate_size": 3 * asked.width,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 512,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
    }
    return plain_job(
        read_config("bench", config),
        seq_len=asked.seq_len,
        global_batch=asked.num_sequences,
        num_steps=2,
    )


def _strategy(asked: Asked, offload: str) -> Strategy:
    return Strategy(
        micro_batch=asked.num_sequences,
        activation_checkpointing="none",
        loss_chunks=1,
        attention=asked.attention,
        offload=offload,
    )


def _seconds(run: Run) -> float:
    start_s = time.process_time()
    run()
    return time.process_time() - start_s


def measured_device() -> Device:
    """Measure the rates of one thread of this machine, by calibration's kernels, in CPU seconds."""
    every = kernels(_CPU, bf16=False)
    amounts: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for kernel in every:
        kernel.run()
        taken = statistics.median(_seconds(kernel.run) for _ in range(NUM_ROUNDS))
        amounts[kernel.rate] = amounts.get(kernel.rate, 0.0) + kernel.share * kernel.amount
        seconds[kernel.rate] = seconds.get(kernel.rate, 0.0) + kernel.share * taken
    rates = {name: amounts[name] / seconds[name] for name in amounts}
    return Device(
        name="local",
        description="one thread of this machine",
        kernels="cpu",
        usable_bytes=2**34,
        capability=0.0,
        matrix_flops_per_s=MatrixRates(fp32=rates["fp32"], bf16=0.0),
        memory_bytes_per_s=rates["memory"],
        op_overhead_s=1 / rates["launch"],
        calibrated=True,
        source="benchmarks/offload.py",
        copy_bytes_per_s=rates["copy"],
    )


def _step_of(asked: Asked, offload: str) -> Run:
    job = _job(asked)
    program = build_program(job, _strategy(asked, offload), _CPU)
    ids = torch.randint(0, job.model.vocab_size, (asked.num_sequences, asked.seq_len))
    batches = [Batch(ids, ids)]
    num_targets = count_targets(batches)

    def step() -> None:
        train_step(program, batches, num_targets=num_targets, learning_rate=1e-4)

    return step


def measure(asked: Asked, device: Device) -> Row:
    """Time one kind of offload beside none, and predict the difference."""
    plain, away = _step_of(asked, "none"), _step_of(asked, asked.offload)
    for step in (plain, away, plain, away):
        step()
    pairs = [(_seconds(plain), _seconds(away)) for _ in range(NUM_TURNS)]
    cluster = Cluster(name="local", device=device, num_devices=1, host_ram_bytes=0)
    said = [
        attempt(_job(asked), cluster, _strategy(asked, offload)).step_s
        for offload in ("none", asked.offload)
    ]
    return Row(
        offload=asked.offload,
        plain_s=statistics.median(one for one, _ in pairs),
        predicted_s=said[1] - said[0],
        measured_s=statistics.median(other - one for one, other in pairs),
    )


def main() -> int:
    """Run, print, and say whether every bar was met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows here")
    args = parser.parse_args()
    if any(name not in os.environ for name in _KEEP):  # glibc reads them when a process begins
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **_KEEP})  # noqa: S606
    torch.set_num_threads(1)
    device = measured_device()
    print(f"copies: {device.copy_bytes_per_s / 1e9:.1f} GB/s one way")
    rows = [measure(asked, device) for asked in ASKED]
    for row in rows:
        print(
            f"{row.offload:28} step {1e3 * row.plain_s:7.1f} ms  costs {1e3 * row.measured_s:6.2f} "
            f"ms  predicted {1e3 * row.predicted_s:6.2f} ms  {row.error:+.0%}"
        )
    if args.json is not None:
        content = {
            "schema": OFFLOAD_SPEED_SCHEMA,
            "versions": versions(),
            "copy_bytes_per_s": device.copy_bytes_per_s,
            "rows": rows,
        }
        write_bytes(args.json, msgspec.json.format(msgspec.json.encode(content)))
    missed = [row for row in rows if abs(row.error) > BAR]
    for row in missed:
        print(f"missed: {row.offload} is predicted {row.error:+.0%} off and {BAR:.0%} is allowed")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
