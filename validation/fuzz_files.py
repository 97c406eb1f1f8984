"""Files that other verbs read, drawn at random: exports, run folders, published runs, calibrations.

Each is a sound one with a few changes, or nothing at all. What must hold: ``fuzz_checks``.
"""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import yaml
from fuzz_draws import BROKEN, Asked, mutated, plan_of
from hypothesis import strategies as st

from brimful.hardware.calibration import CALIBRATION_SCHEMA, calibration_path
from brimful.hardware.cluster import Device
from brimful.hardware.probe import probe_local
from brimful.process.versions import versions


def _yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, sort_keys=False).encode("utf-8", "surrogatepass")


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _lines(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _cut(content: bytes) -> st.SearchStrategy[bytes]:
    """Cut a file short somewhere."""
    return st.integers(0, len(content)).map(lambda end: content[:end])


def _changed(value: Any, encode: Callable[[Any], bytes]) -> st.SearchStrategy[bytes]:
    """Draw a document: mostly with a few changes, now and then cut short, or another thing."""
    changed = mutated(value).map(encode)
    return st.one_of(BROKEN, _cut(encode(value)), changed, changed, changed, changed)


TARGETS = ("torchrun", "slurm", "deepspeed", "accelerate", "hf-trainer", "torchtitan")


@st.composite
def exports(draw: st.DrawFn) -> Asked:
    """Draw plans that are exported."""
    content = draw(_changed(plan_of(), _yaml))
    target = draw(st.sampled_from(TARGETS))
    return Asked(("export", "plan.yaml", f"--to={target}", "--json"), (("plan.yaml", content),))


CURVE = [
    {"kind": "train", "step": step, "loss": 5.0 / step, "learning_rate": 3e-4, "grad_norm": 1.0,
     "tokens_per_s": 1000.0, "step_s": 0.5, "num_targets": 512, "used_bytes": 10**9,
     "peak_bytes": 2 * 10**9, "mfu": 0.4}
    for step in (1, 2, 3)
] + [{"kind": "eval", "step": 3, "heldout_loss": 2.0, "perplexity": 7.4}]  # fmt: skip
"""Rows of ``metrics.jsonl``."""


@st.composite
def run_folders(draw: st.DrawFn) -> Asked:
    """Draw folders of runs: a plan, a curve and commands, one of them changed."""
    sound = {
        "run/plan.yaml": _yaml(plan_of()),
        "run/metrics.jsonl": _lines(CURVE),
        "run/commands.txt": b"brimful train gpt2\n",
    }
    name = draw(st.sampled_from((*sound, "run/measurement.json", "run/data.json")))
    drawn = {
        "run/plan.yaml": lambda: _changed(plan_of(), _yaml),
        "run/metrics.jsonl": lambda: _changed(CURVE, _lines_of),
    }
    content = draw(drawn.get(name, lambda: BROKEN)())
    return Asked(("report", "run", "--json"), tuple({**sound, name: content}.items()))


def _lines_of(value: Any) -> bytes:
    return _lines(value) if isinstance(value, list) else _json(value)


PUBLISHED = {
    "id": "mine", "family": "torchtitan", "implementation": "torchtitan", "model": "llama-3.1-8b",
    "gpu": "h100-80gb", "num_devices": 8, "method": "full", "precision": "bf16-mixed",
    "optimizer": "adamw", "seq_len": 8192, "micro_batch": 2, "checkpointing": "full", "zero": 3,
    "dp_shard": 8, "allocated_gib": 60.0, "reserved_gib": 82.4, "tokens_per_s": 5762.0,
    "source": "me", "versions": "torch 2.13.0",
}  # fmt: skip


@st.composite
def published(draw: st.DrawFn) -> Asked:
    """Draw measured runs that ``validate --file`` reads."""
    ways = {
        "seq_len": draw(st.sampled_from((512, 2048, 8192))),
        "micro_batch": draw(st.integers(1, 8)),
        "checkpointing": draw(st.sampled_from(("none", "full", "selective"))),
        "zero": draw(st.sampled_from((2, 3))),
        "allocated_gib": draw(st.floats(1, 80)),
    }
    sound = {**PUBLISHED, **ways}
    content = draw(st.one_of(st.just(_json(sound)), _changed(sound, _json)))
    return Asked(("validate", "--file=runs.jsonl", "--runs", "--json"), (("runs.jsonl", content),))


@cache
def _local() -> Device:
    return probe_local()


@cache
def _calibration() -> dict[str, Any]:
    return {
        "schema": CALIBRATION_SCHEMA,
        "versions": list(versions()),
        "date": "2026-11-23",
        "machine": _local().description,
        "num_threads": 1,
        "matrix_flops_per_s": {"fp32": 5e10, "bf16": 2e10},
        "memory_bytes_per_s": 1e10,
        "op_overhead_s": 5e-6,
        "spread": 0.02,
        "others_load": 0.01,
        "copy_bytes_per_s": 5e9,
    }


@st.composite
def calibrations(draw: st.DrawFn) -> Asked:
    """Draw this machine's calibration, which stands in the cache folder."""
    path = f"cache/{calibration_path(_local().description).name}"
    content = draw(_changed(_calibration(), _json))
    argv = ("estimate", "gpt2", "--gpus=local", "--precision=fp32", "--seq-len=64", "--json")
    return Asked(argv, ((path, content),))


KINDS: dict[str, Callable[[], st.SearchStrategy[Asked]]] = {
    "exported plans": exports,
    "run folders": run_folders,
    "published runs": published,
    "calibrations": calibrations,
}
