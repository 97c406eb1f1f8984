"""Adapters and quantised bases: the second rung against the third, and at the size of 8B blocks."""

from functools import cache

import msgspec
import pytest

from brimful.models.config import read_config
from brimful.simulate.run import simulate
from brimful.units import KIB, MIB
from brimful.values.job import Adapter
from brimful.values.results import BUFFERS, OPTIMIZER_STATE, PARAMETERS, SAVED_ACTIVATIONS
from metered import meter_steps
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

SIZES = {
    "llama": {"hidden_size": 128, "intermediate_size": 344, "vocab_size": 2000},
    "gpt2": {"n_embd": 128, "n_inner": 344, "vocab_size": 2000},
}
CASES = [
    # architecture, method, base, precision, upcast, input requires grad, checkpointing
    ("llama", "lora", "same", "fp32", "none", False, "none"),
    ("llama", "lora", "same", "fp32", "none", True, "full"),
    ("llama", "lora", "bf16", "bf16-mixed", "none", False, "none"),
    ("llama", "lora", "bf16", "bf16-mixed", "norms", False, "full"),
    ("gpt2", "lora", "same", "bf16", "none", True, "none"),
    ("llama", "dora", "same", "fp32", "none", False, "full"),
    ("gpt2", "dora", "bf16", "bf16-mixed", "none", False, "none"),
    ("llama", "dora", "nf4", "bf16-mixed", "none", False, "full"),
    ("gpt2", "dora", "nf4-double", "fp32", "none", False, "none"),
    ("llama", "qlora", "nf4", "fp32", "none", False, "none"),
    ("gpt2", "qlora", "nf4", "bf16-mixed", "all", False, "full"),
    ("llama", "qlora", "nf4-double", "bf16-mixed", "norms", True, "none"),
    ("llama", "qlora", "nf4-double", "bf16-mixed", "none", False, "full"),
    ("gpt2", "qlora", "int8", "fp32", "none", False, "none"),
    ("llama", "qlora", "int8", "bf16-mixed", "none", False, "full"),
    ("llama", "qlora", "llm-int8", "fp32", "none", False, "full"),
    ("gpt2", "qlora", "llm-int8", "bf16-mixed", "none", False, "none"),
]
SCRATCH_BYTES = 32 * KIB
"""As for full training: see ``test_measured.py``."""


def adapter(**changes):
    fields = {
        "rank": 8,
        "alpha": 16.0,
        "targets": ("all-linear",),
        "trained_modules": (),
        "dtype": "same",
        "base": "same",
        "upcast": "none",
        "input_requires_grad": False,
    }
    return Adapter(**{**fields, **changes})


def settings(case):
    architecture, method, base, precision, upcast, requires_grad, checkpointing = case
    job = make_job(
        architecture,
        model=make_model(architecture, **SIZES[architecture]),
        method=method,
        adapter=adapter(base=base, upcast=upcast, input_requires_grad=requires_grad),
        precision=precision,
        seq_len=256,
        global_batch=4,
    )
    return job, make_strategy(activation_checkpointing=checkpointing)


@cache
def measured(case):
    job, strategy = settings(case)
    return meter_steps(job, strategy)


@cache
def simulated(case, kernels="cpu"):
    job, strategy = settings(case)
    return simulate(job, make_cluster(kernels), strategy)


def allowed_bytes(case, num_bytes):
    return SCRATCH_BYTES if case[3] == "fp32" else max(0.005 * num_bytes, MIB)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_simulated_peak_is_the_measured_one(case):
    peak = measured(case).measured_peak_allocated_bytes
    difference = simulated(case).simulated_peak_allocated_bytes - peak
    assert abs(difference) <= allowed_bytes(case, peak)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_phase_peaks_where_it_was_simulated_to(case):
    phases = {phase.phase: phase.num_bytes for phase in measured(case).phases}
    for phase in simulated(case).phases:
        difference = phase.num_bytes - phases[phase.phase]
        assert abs(difference) <= allowed_bytes(case, phase.num_bytes)


@pytest.mark.few(only=[str(CASES[n]) for n in (0, 10, 13)])  # plain, in four and in eight bits
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_lasts_is_the_same_to_the_byte(case):
    """Quantisation constants are buffers: on both rungs they are told by that."""
    seen = {item.name: item.num_bytes for item in measured(case).items}
    expected = {item.name: item.num_bytes for item in simulated(case).items}
    for name in (PARAMETERS, BUFFERS, OPTIMIZER_STATE):
        assert seen[name] == expected.get(name, 0)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "case", [case for case in CASES if case[:2] == ("llama", "qlora")], ids=str
)
def test_what_lasts_on_a_card_is_what_lasts_here(case):
    on_cpu, on_card = simulated(case), simulated(case, "cuda")
    of_cpu, of_card = ({i.name: i.num_bytes for i in run.items} for run in (on_cpu, on_card))
    for name in (PARAMETERS, BUFFERS, OPTIMIZER_STATE):
        assert of_card[name] == of_cpu[name]


# -- blocks of Llama 3.1 8B on a card --

WIDTH, INNER, KEYS, VOCAB, RANK = 4096, 14336, 1024, 128256, 16
BLOCKS = 2


@cache
def of_8b(base):
    config = {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": VOCAB,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    job = make_job(
        model=read_config("two blocks of 8b", config),
        method="qlora" if base != "bf16" else "lora",
        adapter=adapter(base=base, rank=RANK),
        precision="bf16-mixed",
        seq_len=4096,
        global_batch=1,
    )
    strategy = make_strategy(micro_batch=1, activation_checkpointing="full", loss_chunks=8)
    return simulate(job, make_cluster("cuda"), strategy)


LINEAR = BLOCKS * (2 * WIDTH * WIDTH + 2 * KEYS * WIDTH + 3 * WIDTH * INNER)
WHOLE = 2 * (2 * VOCAB * WIDTH + (2 * BLOCKS + 1) * WIDTH)
"""Bytes of what is never quantised, in bf16."""
SIDES = BLOCKS * (4 * WIDTH + 2 * (WIDTH + KEYS) + 3 * (WIDTH + INNER))
"""In and out features of all adapted layers, summed."""
ADAPTERS = 4 * RANK * SIDES
ROTARY = 4 * 64 * 2


@pytest.mark.few(only=["nf4-double", "llm-int8"])
@pytest.mark.parametrize("base", ["nf4", "nf4-double", "int8", "llm-int8", "bf16"])
def test_a_quantised_base_takes_the_bytes_of_its_closed_form(base):
    result = of_8b(base)
    items = {item.name: item.num_bytes for item in result.items}
    rows = BLOCKS * (2 * WIDTH + 2 * KEYS + WIDTH + 2 * INNER)
    per_weight = {"nf4": 0.5, "nf4-double": 0.5, "int8": 1, "llm-int8": 1, "bf16": 2}
    constants = {
        "nf4": LINEAR // 64 * 4 + 7 * BLOCKS * 64,
        "nf4-double": LINEAR // 64 + LINEAR // 64 // 256 * 4 + 7 * BLOCKS * (64 + 4 + 1024),
        "int8": 4 * rows,
        "llm-int8": 4 * rows,
        "bf16": 0,
    }
    assert items[PARAMETERS] == per_weight[base] * LINEAR + WHOLE + ADAPTERS
    assert items[BUFFERS] == constants[base] + ROTARY
    # Two moments and a step count of 4 bytes for each of A and B.
    assert items[OPTIMIZER_STATE] == pytest.approx(2 * ADAPTERS, rel=1e-3)
    load = next(phase.num_bytes for phase in result.phases if phase.phase == "load")
    held = items[PARAMETERS] + items[BUFFERS]
    assert load - held < 8 * WIDTH * INNER


def test_llm_int8_keeps_its_inputs_whatever_is_checkpointed():
    saved = {
        base: next(i.num_bytes for i in of_8b(base).items if i.name == SAVED_ACTIVATIONS)
        for base in ("int8", "llm-int8")
    }
    assert saved["llm-int8"] > 3 * saved["int8"]


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["layers.5.self_attn.q_proj", "self_attn.q_proj"])
def test_adapters_of_one_block_alone_are_counted_once(target):
    model = make_model(num_hidden_layers=10)
    adapter = make_adapter(targets=(target,))
    job = make_job(model=model, method="lora", adapter=adapter, precision="fp32")
    simulated = simulate(job, make_cluster("cuda"), make_strategy())
    held = {item.name: item.num_bytes for item in simulated.items}
    num_blocks = 1 if "5" in target else 10
    width = model.hidden_size
    moments = num_blocks * 2 * 4 * adapter.rank * (width + width)
    steps = num_blocks * 2 * 4
    assert held[OPTIMIZER_STATE] == moments + steps


@pytest.mark.parametrize("base", ["nf4", "same"])
def test_dora_is_sharded(base):
    """Magnitudes of a base in 4 bits are measured where its rows are gathered."""
    job = make_job(
        model=make_model("llama", **SIZES["llama"]), method="dora", adapter=adapter(base=base)
    )
    spread = [make_strategy(micro_batch=1), make_strategy(micro_batch=1, zero=3, dp_shard=2)]
    job = msgspec.structs.replace(job, global_batch=2)
    clusters = [
        msgspec.structs.replace(make_cluster("cuda"), num_devices=n, devices_per_node=n)
        for n in (1, 2)
    ]
    whole, part = (
        next(
            item.num_bytes
            for item in simulate(job, cluster, strategy).items
            if item.name == PARAMETERS
        )
        for cluster, strategy in zip(clusters, spread, strict=True)
    )
    assert part == pytest.approx(whole / 2, rel=0.01)
