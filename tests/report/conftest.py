"""Run folders, as they would be left behind."""

import json
from pathlib import Path

import msgspec
import pytest

from brimful.measure.verdict import judge
from brimful.report.run_folder import record_command
from brimful.values.plan import write_yaml
from brimful.values.run_files import DATA_SCHEMA, DataSummary

from .sample import (
    HOSTILE,
    make_measurement,
    make_plan,
    make_search,
    make_simulation,
    metric_lines,
)


@pytest.fixture
def plan():
    return make_plan()


@pytest.fixture
def bare_run(tmp_path: Path, plan):
    """A folder that holds a plan and nothing else."""
    run_dir = tmp_path / "run"
    write_yaml(plan, run_dir / "plan.yaml")
    return run_dir


@pytest.fixture
def full_run(bare_run: Path, plan):
    """A folder that holds every part."""
    simulation, measurement = make_simulation(plan), make_measurement(plan)
    data = DataSummary(
        schema=DATA_SCHEMA,
        unigram_entropy=6.42,
        num_train_tokens=2_400_000,
        num_heldout_tokens=120_000,
        source=HOSTILE,
    )
    parts = {
        "simulation": simulation,
        "measurement": measurement,
        "verdict": judge(plan, simulation, measurement),
        "search": make_search(plan),
        "data": data,
    }
    for name, value in parts.items():
        (bare_run / f"{name}.json").write_bytes(msgspec.json.encode(value))
    lines = "".join(json.dumps(row) + "\n" for row in metric_lines())
    (bare_run / "metrics.jsonl").write_text(lines)
    record_command(bare_run, ["brimful", "train", "my plan.yaml"])
    return bare_run
