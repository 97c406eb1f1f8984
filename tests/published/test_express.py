"""Published runs in our terms: what is expressed is what was run, and nothing is guessed."""

import msgspec
import pytest

from brimful.cost.programs import kernels_of, program_of
from brimful.published.express import GPTQ, Expressed, Unexpressed, express
from brimful.published.rows import families, published_runs
from brimful.values.strategy import num_micro_batches, world_size

RUNS = {run.id: run for run in published_runs()}
LORA = RUNS["fms_base_Mistral-7B-v0.1_none_lora_1gpu_b8"]
FSDP2 = RUNS["tt_l31-8b_128gpu_fsdp"]
CHANGES = msgspec.structs.replace


def test_a_fine_tune_of_peft():
    job, cluster, strategy = express(LORA)
    assert (job.method, job.precision, job.optimizer) == ("lora", "bf16", "adamw-foreach")
    assert (job.adapter.rank, job.adapter.dtype) == (16, "fp32")
    assert job.adapter.targets == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert (cluster.device.name, cluster.num_devices) == ("a100-80gb", 1)
    assert (strategy.micro_batch, strategy.activation_checkpointing) == (8, "full")


def test_a_run_on_many_nodes():
    job, cluster, strategy = express(FSDP2)
    assert (cluster.num_nodes, cluster.devices_per_node, cluster.network) == (16, 8, "ib-ndr-400")
    assert (strategy.zero, strategy.dp_shard) == (3, 128)
    assert cluster.device.usable_bytes == round(95.04 * 2**30)
    assert job.global_batch == 256


def test_mpt_runs_the_block_of_a_gpt2_with_a_gelu_of_one_kernel():
    job, cluster, strategy = express(RUNS["foundry_70b_s2048_h100_80gbx128_amp_bf16_mb8_ac"])
    program = program_of(job, strategy.attention, kernels_of(cluster.device), "full", gathers=True)
    assert program.key == "gpt2-gelu-tied.hf.bf16.sdpa.cuda"


@pytest.mark.parametrize("family", families())
def test_what_is_expressed_is_what_was_run(family):
    for run in published_runs(family):
        expressed = express(run)
        if isinstance(expressed, Unexpressed):
            assert expressed.reason
            continue
        job, cluster, strategy = expressed
        assert cluster.num_devices == world_size(strategy) == run.num_devices, run.id
        assert (job.seq_len, strategy.micro_batch) == (run.seq_len, run.micro_batch), run.id
        assert num_micro_batches(job, strategy) == run.accumulation, run.id
        if GPTQ in run.beyond:
            is_wide = run.adapter.dtype == "fp32"  # beside a base in 16 bits: autocast
            told = f"{run.precision.removesuffix('-mixed')}-mixed" if is_wide else run.precision
            assert (job.precision, job.method, job.adapter.base) == (told, "qlora", "nf4-double")
        else:
            assert (job.precision, job.method) == (run.precision, run.method), run.id


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"beyond": ("float8", "expert parallel")}, "float8, expert parallel"),
        ({"gpu": "gaudi3"}, "no CUDA kernels on gaudi3"),
        ({"model": "santacoder", "implementation": "torchtitan"}, "model_type=gpt_bigcode"),
        ({"model": "gpt-oss-20b"}, "model_type=gpt_oss"),
        ({"attention": "flash"}, "attention=flash"),
        ({"seq_len": 40000}, "seq_len=40000 beyond sliding_window=4096"),
        ({"seq_len": 8192}, "seq_len=8192 beyond sliding_window=4096"),
        ({"checkpointing": "full:99"}, "activation_checkpointing=full:99 asks for 99 blocks"),
    ],
)
def test_what_cannot_be_expressed_says_why(changes, reason):
    assert express(CHANGES(LORA, **changes)).reason.startswith(reason)


def test_adapters_that_were_not_traced_are_counted_together():
    adapter = CHANGES(LORA.adapter, targets=("q_proj", "up_proj"))
    assert express(CHANGES(LORA, adapter=adapter)).reason == "lora, bf16, adapters of 2 names"
    quantized = CHANGES(LORA.adapter, base="nf4")
    run = CHANGES(LORA, method="qlora", adapter=quantized)
    assert express(run).reason == "qlora on nf4, bf16, adapters of 4 names"


def test_every_family_but_one_of_another_kind_of_model_is_expressed():
    found = {run.family for run in RUNS.values() if isinstance(express(run), Expressed)}
    assert found >= {"fms", "torchtitan", "litgpt", "litgpt-hub", "llm-foundry"}


def test_longer_texts_than_a_model_has_learnt_are_trained_on_where_positions_are_angles():
    run = RUNS["fms_base_Mistral-7B-v0.1_none_lora_1gpu_b8"]
    long = msgspec.structs.replace(run, model="llama-2-7b", seq_len=8192)
    assert express(long).job.model.max_seq_len == 8192
    table = express(msgspec.structs.replace(run, model="gpt2", adapter=None, method="full"))
    assert "1024 positions" in table.reason
