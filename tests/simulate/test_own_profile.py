"""Profiles that are traced when they are first asked for, against the simulation."""

import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.formula import is_traceable, missing_formula
from brimful.cost.own_programs import chosen_program, needs_of
from brimful.cost.profiles import Term, load_profile
from brimful.cost.reserved import predicted_reserved
from brimful.errors import UnsupportedError
from brimful.models.config import default_task, for_task, layout_of, parameter_count, read_config
from pairs import PREFERENCE
from samples import make_adapter, make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

TINY = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 304,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def other_job(model_type="phi", seq_len=512, **changes):
    own = changes.pop("own", {})
    model = read_config(f"tiny-{model_type}", {**TINY, **own, "model_type": model_type})
    model = for_task(model, changes.get("task", default_task(model)))
    return make_job(model=model, seq_len=seq_len, **{"precision": "bf16-mixed", **changes})


def traced(job, strategy, cluster):
    from brimful.simulate.on_demand import trace_needs

    trace_needs(job, strategy.attention, "cuda", needs_of(job, strategy), watch=lambda _state: None)
    return estimate(job, cluster, strategy).predicted_peak_allocated_bytes


def simulated(job, strategy, cluster):
    from brimful.simulate.run import simulate

    return simulate(job, cluster, strategy).simulated_peak_allocated_bytes


RESIDENT = {"reference": "resident"}
CASES = {
    "whole": ({}, {"micro_batch": 2}),
    "alone": ({}, {"micro_batch": 1, "activation_checkpointing": "full"}),
    "mixed": ({}, {"micro_batch": 2, "activation_checkpointing": "full:2", "loss_chunks": 4}),
    "sharded": (
        {"global_batch": 16},
        {"micro_batch": 2, "dp_shard": 8, "zero": 3, "activation_checkpointing": "selective"},
    ),
    "replicas": ({"global_batch": 8}, {"micro_batch": 1, "dp_replicate": 8, "zero": 0}),
    "every second product": (
        {"global_batch": 16},
        {"micro_batch": 2, "dp_shard": 8, "zero": 3, "activation_checkpointing": "alternate:2"},
    ),
    "dora": (
        {"method": "dora", "adapter": make_adapter(rank=8)},
        {"micro_batch": 2, "activation_checkpointing": "full"},
    ),
    "in-4-bits": (
        {"method": "dora", "adapter": make_adapter(rank=8, base="nf4")},
        {"micro_batch": 2, "activation_checkpointing": "full:2", "loss_chunks": 4},
    ),
    "in-4-bits-sharded": (
        {"method": "qlora", "adapter": make_adapter(rank=8, base="nf4"), "global_batch": 16},
        {"micro_batch": 2, "dp_shard": 8, "zero": 3, "activation_checkpointing": "selective"},
    ),
    "one-layer": (
        {"method": "lora", "adapter": make_adapter(rank=8, targets=("dense",))},
        {"micro_batch": 4},
    ),
    "fp8": ({"precision": "fp8"}, {"micro_batch": 2}),
    "fp8-sharded": (
        {"precision": "fp8", "global_batch": 16},
        {"micro_batch": 2, "dp_shard": 8, "zero": 3},
    ),
    "documents": ({"packing": "documents"}, {"micro_batch": 2}),
    "pairs": ({"task": "dpo", "preference": PREFERENCE}, {"micro_batch": 2, **RESIDENT}),
    "pairs-sharded": (
        {"task": "dpo", "preference": PREFERENCE, "global_batch": 16},
        {"micro_batch": 1, "dp_shard": 8, "zero": 3, "loss_chunks": 2, **RESIDENT},
    ),
    "masks-of-shards": (
        {"global_batch": 16},
        {"micro_batch": 2, "dp_shard": 8, "zero": 3, "attention": "eager"},
    ),
}


@pytest.mark.few(
    # Replicas: test_one_unit.py; adapters on some layers: test_brought_base.py.
    only=["in-4-bits", "pairs", "fp8-sharded", "every second product"]
)
@pytest.mark.parametrize("case", CASES)
def test_a_model_that_nobody_foresaw_is_predicted_as_it_is_simulated(case):
    of_job, of_strategy = CASES[case]
    job, cluster = other_job(**of_job), make_cluster("cuda")
    strategy = make_strategy(**{"attention": "sdpa", **of_strategy})
    assert missing_formula(other_job(own={"vocab_size": 310}), strategy, cluster.device)
    assert traced(job, strategy, cluster) == pytest.approx(
        simulated(job, strategy, cluster), rel=2e-3
    )
    assert not missing_formula(job, strategy, cluster.device)


@pytest.mark.few(only=["scores", "cpu"])
@pytest.mark.parametrize(
    ("kernels", "switches"),
    [
        pytest.param("cuda", {"attention": "eager"}, id="scores"),
        pytest.param("cuda", {"activation_checkpointing": "full:2", "loss_chunks": 4}, id="again"),
        pytest.param("cpu", {"activation_checkpointing": "full"}, id="cpu"),
    ],
)
def test_what_is_dropped_is_traced_and_predicted_as_it_is_simulated(kernels, switches):
    from brimful.simulate.on_demand import trace_needs

    own = {"n_inner": 160, "n_positions": 2048, "attn_pdrop": 0.1, "resid_pdrop": 0.2}
    off, cluster = other_job("gpt2", own=own), make_cluster(kernels)
    job = msgspec.structs.replace(off, dropout="model")
    strategy = make_strategy(**switches)
    trace_needs(job, strategy.attention, kernels, needs_of(job, strategy), watch=lambda _: None)
    peak = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    assert peak == pytest.approx(simulated(job, strategy, cluster), rel=2e-3)
    assert peak > 1.01 * estimate(off, cluster, strategy).predicted_peak_allocated_bytes


def test_a_model_that_nobody_has_read_is_read_where_shares_are_told_apart(tmp_path, monkeypatch):
    from brimful.models.traced import find_built
    from brimful.simulate.run import fullest_rank

    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path))
    monkeypatch.setattr("brimful.models.traced._known", {})
    job = other_job(global_batch=8)
    assert find_built(job.model) is None
    assert fullest_rank(job, make_strategy(micro_batch=1, dp_shard=4, zero=1)) in range(4)


OTHERS = {
    "buffers": ("gpt_bigcode", {"n_inner": 160, "n_positions": 2048}, {}),
    "rotations of two kinds": ("gemma3_text", {"head_dim": 16, "sliding_window": 2048}, {}),
    "a window": ("mistral", {"sliding_window": 256, "num_key_value_heads": 2}, {}),
    "a classifier": (
        "roberta",
        {"pad_token_id": 1, "num_labels": 3, "max_position_embeddings": 1026},
        {"task": "sequence-classification", "packing": "none"},
    ),
    "a score": (
        "qwen2",
        {"num_labels": 3, "tie_word_embeddings": True, "num_key_value_heads": 2},
        {"task": "sequence-classification", "packing": "none"},
    ),
}


@pytest.mark.few(only=["a score"])
@pytest.mark.parametrize("case", OTHERS)
def test_what_a_model_holds_beside_its_parameters_is_read_off_it(case):
    model_type, own, changes = OTHERS[case]
    job, cluster = other_job(model_type, own=own, **changes), make_cluster("cuda")
    strategy = make_strategy(attention="sdpa", micro_batch=2)
    predicted, expected = traced(job, strategy, cluster), simulated(job, strategy, cluster)
    assert predicted == pytest.approx(expected, rel=1e-3)
    reserved = predicted_reserved(job, cluster, strategy)
    assert reserved.predicted_peak_reserved_bytes >= predicted


SEQUENCES = {
    "short windows": ("gemma3_text", {"head_dim": 16, "sliding_window": 256}),
    "dense before experts": (
        "glm4_moe",
        {
            "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
            "num_key_value_heads": 2, "head_dim": 16, "first_k_dense_replace": 2,
        },
    ),
}  # fmt: skip
SPREADS = {
    "alone": ({}, {"activation_checkpointing": "full:5", "loss_chunks": 4}),
    "sharded": ({"global_batch": 16}, {"dp_shard": 8, "zero": 3}),
}


@pytest.mark.few(only=["dense before experts-sharded"])
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_blocks_of_several_kinds_are_a_sequence_of_them(sequence, spread):
    (model_type, own), (of_job, of_strategy) = SEQUENCES[sequence], SPREADS[spread]
    job = other_job(model_type, own={**own, "num_hidden_layers": 11}, **of_job)
    strategy, cluster = make_strategy(attention="sdpa", **of_strategy), make_cluster("cuda")
    predicted, expected = traced(job, strategy, cluster), simulated(job, strategy, cluster)
    assert predicted == pytest.approx(expected, rel=1e-3)
    assert not missing_formula(job, strategy, cluster.device)


@pytest.mark.long  # bases in 4 bits are in tests/cost, sequences in the two tests beside it
def test_blocks_in_4_bits_that_stand_twice_in_a_sequence_are_copied():
    model_type, own = SEQUENCES["short windows"]
    adapter = make_adapter(rank=8, base="nf4-double")
    job = other_job(
        model_type, own={**own, "num_hidden_layers": 8}, method="qlora", adapter=adapter
    )
    strategy, cluster = make_strategy(attention="sdpa"), make_cluster("cuda")
    predicted, expected = traced(job, strategy, cluster), simulated(job, strategy, cluster)
    assert predicted == pytest.approx(expected, rel=1e-3)


def test_what_has_no_formula_is_refused_once_and_for_all(monkeypatch):
    from brimful.simulate import own_fit, own_profile

    def uneven(_self, sizes):
        raise ValueError(f"no products give the sizes {sizes}")

    job, cluster = other_job(own={"vocab_size": 320}), make_cluster("cuda")
    with monkeypatch.context() as patch:
        patch.setattr(own_fit.OwnFit, "_fitted", uneven)
        with pytest.raises(UnsupportedError, match="cannot be profiled: no products"):
            traced(job, make_strategy(attention="sdpa"), cluster)
    monkeypatch.setattr(own_profile, "_recorded", None)
    with pytest.raises(UnsupportedError, match="cannot be profiled: no products"):
        traced(job, make_strategy(attention="sdpa"), cluster)


def test_formulas_hold_where_they_were_not_solved():
    from brimful.simulate.own_fit import OwnFit, TokenShape

    shapes = [TokenShape(5, 384, 5), TokenShape(6, 896, 5), TokenShape(4, 1152, 5)]
    fit = OwnFit(shapes)
    chunks = tuple(7 * shape.chunk_tokens for shape in shapes)
    assert fit(chunks) == (Term("C", 7.0),)
    assert fit(tuple(7 * shape.last_tokens for shape in shapes)) == (Term("C", 7.0),)
    assert fit(tuple(4096 * shape.B * shape.S for shape in shapes)) == (Term("BS", 4096.0),)
    both = tuple(3 * shape.S**2 + 100 for shape in shapes)
    assert set(fit(both)) == {Term("", 100.0), Term("SS", 3.0)}
    with pytest.raises(ValueError, match="no products"):
        fit((5, 7, 11))
    # Of a scan in chunks of 128 tokens, over one more than there are.
    scanned = tuple(shape.B * (shape.S // 128 + 1) ** 2 for shape in shapes)
    assert set(fit(scanned)) == {
        Term("BSS", 1 / 128**2), Term("BS", 2 / 128), Term("B", 1.0),
    }  # fmt: skip


def test_what_was_traced_is_read_by_the_next_process(monkeypatch):
    from brimful.cost import profiles
    from brimful.models import traced as of_models

    job, cluster = other_job(precision="bf16"), make_cluster("cuda")
    strategy = make_strategy(attention="sdpa", micro_batch=2)
    peak = traced(job, strategy, cluster)
    profiles._own.clear()
    of_models._known.clear()
    monkeypatch.setattr("brimful.simulate.on_demand.with_variants", None)
    assert traced(job, strategy, cluster) == peak
    program = chosen_program(job, "sdpa", "cuda", "full")
    assert {t.factors for k in load_profile(program.key).kinds for t in k.terms} <= {
        "", "B", "S", "C", "BS", "SS", "BSS",
    }  # fmt: skip


def test_the_layout_is_what_was_built():
    from transformers import AutoConfig, AutoModelForCausalLM

    job = other_job("gpt_neox")
    traced(job, make_strategy(attention="sdpa"), make_cluster("cuda"))
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("gpt_neox", **job.model.hf_config)
    )
    assert parameter_count(job.model).total == sum(p.numel() for p in model.parameters())
    (blocks,) = layout_of(job.model).blocks
    assert (blocks.prefix, blocks.num_blocks) == ("gpt_neox.layers", 3)
    kinds = {p.name: p.kind for p in blocks.parameters}
    assert kinds["attention.query_key_value.weight"] == "linear"
    assert kinds["attention.query_key_value.bias"] == "bias"
    assert kinds["input_layernorm.bias"] == "norm"


def test_shipped_profiles_are_taken_where_there_are_any():
    job, cluster = make_job(), make_cluster("cuda")
    strategy = make_strategy(attention="sdpa")
    assert not is_traceable(job, strategy, cluster.device)
    assert "@" not in chosen_program(job, "sdpa", "cuda", "full").key
    relu = msgspec.structs.replace(
        job, model=read_config("relu", {**job.model.hf_config, "model_type": "llama",
                                        "hidden_act": "relu"})
    )  # fmt: skip
    assert is_traceable(relu, strategy, cluster.device)


@pytest.mark.parametrize(
    ("gpus", "pinned"),
    [
        (1, {"loss_chunks": 1, "micro_batch": 2}),
        pytest.param(1, {}, marks=pytest.mark.long),
        pytest.param(4, {"loss_chunks": 1}, marks=pytest.mark.long),
    ],
)
def test_a_search_over_a_sequence_is_its_estimates_and_none_is_below_its_bound(gpus, pinned):
    """Levels are merged and walked through together; peaks are bounded before that."""
    import numpy as np

    from brimful.search.grid import evaluate, least_peaks, peaks_of
    from brimful.search.grid_values import Search
    from brimful.search.pins import Pins
    from brimful.search.space import grids, needs
    from brimful.search.table import strategy_at
    from brimful.simulate.on_demand import trace_needs

    model_type, own = SEQUENCES["short windows"]
    job = other_job(model_type, own={**own, "num_hidden_layers": 7}, global_batch=8)
    cluster = msgspec.structs.replace(make_cluster("cuda"), num_devices=gpus)
    pins = Pins(**pinned)  # each number of chunks is traced: of shards only whole logits
    every = needs(job, [pins], "sdpa", cluster)
    trace_needs(job, "sdpa", "cuda", every, watch=lambda _state: None)
    search = Search(job, cluster, "sdpa", held={}, levels={}, works={}, waits={})
    found = list(grids(job, pins, attention="sdpa", cluster=cluster))
    assert max(len(grid.num_blocks) for grid in found) == 6
    for number, grid in enumerate(found):
        peaks = peaks_of(search, grid)
        assert np.all(least_peaks(search, grid) <= peaks)
        if number % 23 == 0:
            table = evaluate(search, grid)
            for row in range(0, len(table.peak_bytes), max(1, len(table.peak_bytes) // 6)):
                strategy = strategy_at(job, table, row, "sdpa", "none")
                made = estimate(job, cluster, strategy)
                told = made.predicted_peak_allocated_bytes
                assert table.peak_bytes[row] == pytest.approx(told, abs=1)
                if gpus == 1:  # of several nobody said what lies between them
                    assert table.step_s[row] == pytest.approx(made.predicted_step_s, rel=1e-9)
