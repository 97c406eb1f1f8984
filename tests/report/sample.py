"""The values of a run: small, complete, and with names that must be escaped."""

from brimful.hardware.cluster import Cluster, Device, MatrixRates
from brimful.models.config import read_config
from brimful.search.record import SEARCH_SCHEMA, Considered, SearchRecord
from brimful.units import GIB, MIB
from brimful.values.job import plain_job
from brimful.values.plan import PLAN_SCHEMA, Band, Estimate, MemoryItem, PhasePeak, Plan, StepTime
from brimful.values.results import (
    GRADIENTS,
    MEASUREMENT_SCHEMA,
    OPTIMIZER_STATE,
    PARAMETERS,
    SAVED_ACTIVATIONS,
    SIMULATION_SCHEMA,
    TRANSIENTS,
    Measurement,
    Owner,
    Simulation,
    Timeline,
)
from brimful.values.strategy import Strategy

HOSTILE = "</script><script>alert('x')</script> & [red]"
"""A name that would end a script, open a tag and turn rich's markup on."""
CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
SIZES = {
    PARAMETERS: 160 * MIB,
    GRADIENTS: 160 * MIB,
    OPTIMIZER_STATE: 320 * MIB,
    SAVED_ACTIVATIONS: 300 * MIB,
    TRANSIENTS: 40 * MIB,
}


def items(sizes):
    return tuple(
        MemoryItem(name=name, phase="step 2+", num_bytes=size, where="device", why=f"why {name}")
        for name, size in sizes.items()
    )


def strategy(micro_batch=4, checkpointing="full:2"):
    return Strategy(
        micro_batch=micro_batch,
        activation_checkpointing=checkpointing,
        loss_chunks=1,
        attention="sdpa",
    )


def make_plan(usable_bytes=3 * GIB // 2):
    peak = sum(SIZES.values())
    device = Device(
        name="local",
        description=f"CPU {HOSTILE}",
        kernels="cpu",
        usable_bytes=usable_bytes,
        capability=0,
        matrix_flops_per_s=MatrixRates(fp32=1e11, bf16=0),
        memory_bytes_per_s=2e10,
        op_overhead_s=6e-6,
        calibrated=True,
        source="measured",
    )
    job = plain_job(
        read_config(f"tiny {HOSTILE}", CONFIG),
        precision="bf16-mixed",
        seq_len=512,
        global_batch=16,
        num_steps=30,
        learning_rate=1e-3,
        warmup_steps=2,
    )
    estimate = Estimate(
        items=items(SIZES),
        phases=(PhasePeak(phase="step 1", num_bytes=peak // 2, where="backward"),),
        predicted_peak_allocated_bytes=peak,
        predicted_peak_reserved_bytes=None,
        predicted_process_bytes=Band(low=peak + 300 * MIB, high=peak + 600 * MIB),
        predicted_step_s=2.0,
        predicted_step_band_s=Band(low=1.8, high=2.3),
        predicted_step_time=StepTime(matrix_s=1.5, memory_s=0.4, launch_s=0.1),
        step_flops=3e11,
        usable_bytes=usable_bytes,
        fits=peak <= usable_bytes,
        assumptions=(f"matrix_efficiency = 0.8 ({HOSTILE})", "second = 2 (because)"),
    )
    return Plan(
        schema=PLAN_SCHEMA,
        job=job,
        cluster=Cluster(name="local", device=device, num_devices=1, host_ram_bytes=0),
        strategy=strategy(),
        estimate=estimate,
    )


def timeline(num_events, peak):
    live = [peak * (1 + i % 7) // 7 for i in range(num_events)]
    return Timeline(
        event=tuple(range(num_events)),
        live_bytes=tuple(live),
        phase_starts=(0, num_events // 2),
        phases=("step 1 forward", f"step 1 {HOSTILE}"),
    )


def make_simulation(plan):
    sizes = {**SIZES, SAVED_ACTIVATIONS: 310 * MIB}
    owner = Owner(
        num_bytes=4 * MIB,
        item=SAVED_ACTIVATIONS,
        module=f"model.layers.0.{HOSTILE}",
        op="aten.mm.default",
        shape="[4, 512, 256]",
        dtype="bfloat16",
    )
    return Simulation(
        schema=SIMULATION_SCHEMA,
        versions=("torch 2.13.0",),
        kernels="cpu",
        items=items(sizes),
        phases=plan.estimate.phases,
        simulated_peak_allocated_bytes=sum(sizes.values()),
        reserved=None,
        owners=(owner,) * 30,
        num_events=140,
        simulate_s=0.5,
        timeline=timeline(140, sum(sizes.values())),
    )


def make_measurement(plan):
    sizes = {PARAMETERS: 160 * MIB, "activations and transients": 831 * MIB}
    return Measurement(
        schema=MEASUREMENT_SCHEMA,
        versions=("torch 2.13.0",),
        method="profiler events, CPU kernels",
        items=items(sizes),
        phases=plan.estimate.phases,
        measured_peak_allocated_bytes=sum(sizes.values()),
        measured_peak_reserved_bytes=None,
        measured_process_bytes=1400 * MIB,
        measured_step_s=2.1,
        timeline=timeline(210, sum(sizes.values())),
    )


def make_search(plan):
    def row(considered, peak_bytes, note):
        return Considered(
            strategy=considered,
            peak_bytes=peak_bytes,
            step_s=2.0,
            fits=peak_bytes <= plan.estimate.usable_bytes,
            note=note,
        )

    return SearchRecord(
        schema=SEARCH_SCHEMA,
        rung="predicted",
        rows=(
            row(plan.strategy, plan.estimate.predicted_peak_allocated_bytes, "fastest"),
            row(strategy(2), 900 * MIB, HOSTILE),
            row(strategy(16, "none"), 2 * GIB, "too large"),
        ),
        num_considered=120,
        num_fitting=40,
    )


def metric_lines(num_steps=30):
    for step in range(1, num_steps + 1):
        train = {"kind": "train", "step": step, "loss": 9 / step, "learning_rate": 1e-3}
        yield {**train, "grad_norm": 1.0, "tokens_per_s": 4000.0, "step_s": 2.1}
        if step % 10 == 0:
            yield {"kind": "eval", "step": step, "heldout_loss": 9.5 / step}
