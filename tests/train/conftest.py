from pathlib import Path

import pytest

from brimful.hardware.cluster import Cluster, Device, MatrixRates
from brimful.models.config import read_config
from brimful.values.job import plain_job
from brimful.values.plan import PLAN_SCHEMA, Estimate, Plan
from brimful.values.strategy import Strategy

VOCAB_SIZE = 300


def make_job(**changes):
    config = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    fields = {
        "model": read_config("tiny", config),
        "seq_len": 32,
        "global_batch": 4,
        "num_steps": 12,
        "learning_rate": 1e-2,
        "warmup_steps": 3,
        "seed": 7,
    }
    return plain_job(**{**fields, **changes})


def make_plan(*, micro_batch=2, **job_changes):
    device = Device(
        name="local",
        description="this machine",
        kernels="cpu",
        usable_bytes=2**31,
        capability=0.0,
        matrix_flops_per_s=MatrixRates(fp32=0, bf16=0),
        memory_bytes_per_s=0,
        op_overhead_s=0,
        calibrated=False,
        source="a test",
    )
    estimate = Estimate(
        items=(),
        phases=(),
        predicted_peak_allocated_bytes=0,
        predicted_peak_reserved_bytes=None,
        predicted_process_bytes=None,
        predicted_step_s=None,
        predicted_step_band_s=None,
        predicted_step_time=None,
        step_flops=0.0,
        usable_bytes=2**31,
        fits=True,
        assumptions=(),
    )
    strategy = Strategy(
        micro_batch=micro_batch,
        activation_checkpointing="none",
        loss_chunks=1,
        attention="sdpa",
    )
    return Plan(
        schema=PLAN_SCHEMA,
        job=make_job(**job_changes),
        cluster=Cluster(name="local", device=device, num_devices=1, host_ram_bytes=0),
        strategy=strategy,
        estimate=estimate,
    )


@pytest.fixture(scope="session")
def plan_with():
    return make_plan


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    """Some real text: files of this project, big enough for thousands of tokens."""
    source = Path(__file__).parents[2] / "src" / "brimful"
    folder = tmp_path_factory.mktemp("text")
    for path in [*sorted(source.glob("*.py")), *sorted(source.glob("models/*.py"))]:
        (folder / f"{path.parent.name}-{path.name}").write_bytes(path.read_bytes())
    return folder
