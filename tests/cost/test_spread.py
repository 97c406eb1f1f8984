"""Many devices on the first rung: formulas give what one device of the pretend world takes."""

import msgspec
import numpy as np
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.family import family_of
from brimful.cost.profiles import load_profile
from brimful.cost.programs import program_of
from brimful.cost.shards import largest_share, piece_bytes
from brimful.cost.spread import NUM_PIECES, Piece, Way, has_pieces, is_block, spread_runs
from brimful.cost.trained import trained_parameters, trained_shapes
from brimful.cost.trajectory import stands_for_none
from brimful.errors import UnsupportedError
from brimful.simulate.run import fullest_rank, simulate
from brimful.techniques.optimizers import Updated
from brimful.techniques.runnable import check_strategy
from brimful.values.results import (
    GATHERED,
    GRADIENTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    REDUCED,
    WORKSPACES,
)
from brimful.values.strategy import data_parallel
from each_case import each
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy

ADAMW_STEP_BYTES = 4
PEAK_SHARE = 1e-4
"""Of the peak; 0.3 % is the bar."""

STATES = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE)
PROFILE = "llama.hf.bf16.sdpa.cuda"
LLAMA = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
}
GPT2 = {"n_embd": 128, "n_inner": 352, "n_head": 4, "n_layer": 4, "vocab_size": 1000}
DDP, ZERO_1 = {"zero": 0, "dp_replicate": 4}, {"zero": 1, "dp_shard": 4}
ZERO_2, ZERO_3 = {"zero": 2, "dp_shard": 4}, {"zero": 3, "dp_shard": 4}
HYBRID = {"zero": 3, "dp_shard": 4, "dp_replicate": 2}
UNEVEN = {"zero": 3, "dp_shard": 7}
LORA, HALF_BASE = {"rank": 8}, {"rank": 8, "base": "bf16"}

CASES = {
    "ddp": (DDP, {}),
    "ddp-tied-chunks": (DDP, {"tied": True, "loss_chunks": 3}),
    "ddp-held": (DDP, {"micro_batches": 3, "accumulate": "hold"}),
    "zero-1": (ZERO_1, {"micro_batches": 2}),
    "zero-1-more-devices-than-tensors": (ZERO_1 | {"dp_shard": 64}, {"precision": "bf16"}),
    "zero-2": (ZERO_2, {"precision": "fp32"}),
    "zero-2-held-checkpointed": (
        ZERO_2, {"micro_batches": 3, "accumulate": "hold", "checkpointing": "full"}),
    "zero-3-selective-chunks": (ZERO_3, {"checkpointing": "selective", "loss_chunks": 4}),
    "zero-3-one-block-checkpointed": (ZERO_3, {"checkpointing": "full:1", "micro_batches": 2}),
    "zero-3-all-but-one-block": (ZERO_3, {"checkpointing": "full:3", "accumulate": "hold",
                                          "micro_batches": 2}),
    "uneven-masters": (UNEVEN, {"precision": "bf16-master"}),
    "uneven-gpt2-biases-selective": (
        UNEVEN, {"architecture": "gpt2", "checkpointing": "selective", "micro_batches": 3}),
    "hybrid-several": (HYBRID, {"micro_batches": 2, "checkpointing": "full:2"}),
    "hybrid-held": (HYBRID, {"micro_batches": 2, "accumulate": "hold", "precision": "bf16"}),
    "lora-zero-3": (ZERO_3, {"adapter": LORA, "micro_batches": 2}),
    "lora-on-a-half-base-zero-2": (ZERO_2, {"adapter": HALF_BASE, "accumulate": "hold",
                                            "micro_batches": 3}),
    "lora-of-two-layers-zero-3": (
        ZERO_3, {"adapter": {"targets": ("q_proj", "v_proj")}, "precision": "bf16"}),
    "wide-adapters-zero-3": (ZERO_3, {"adapter": {"dtype": "fp32"}, "precision": "bf16"}),
}  # fmt: skip


def build(  # noqa: PLR0913 - a case
    spread,
    *,
    architecture="llama",
    precision="bf16-mixed",
    micro_batches=1,
    checkpointing="none",
    adapter=None,
    tied=False,
    seq_len=128,
    kernels="cpu",
    **changes,
):
    """Make the job, the cluster and the strategy of a case."""
    tying = {"tie_word_embeddings": tied} if architecture == "llama" else {}
    sizes = {"llama": LLAMA, "gpt2": GPT2}[architecture]
    strategy = make_strategy(
        micro_batch=1, activation_checkpointing=checkpointing, **spread, **changes
    )
    job = make_job(
        architecture,
        model=make_model(architecture, **sizes, **tying),
        precision=precision,
        seq_len=seq_len,
        global_batch=micro_batches * data_parallel(strategy),
    )
    if adapter is not None:
        adapter = make_adapter(**adapter)
        job = msgspec.structs.replace(job, method="lora", adapter=adapter)
    cluster = msgspec.structs.replace(make_cluster(kernels), num_devices=data_parallel(strategy))
    return job, cluster, strategy


def items(found):
    return {item.name: item.num_bytes for item in found}


@pytest.mark.few(
    only=[
        "uneven-gpt2-biases-selective",
        "zero-3-all-but-one-block",
        "hybrid-several",
        "lora-of-two-layers-zero-3",
        "zero-1-more-devices-than-tensors",
    ]
)
@pytest.mark.torch
@pytest.mark.parametrize("name", CASES)
def test_the_prediction_is_the_simulation(name):
    spread, changes = CASES[name]
    is_cuda = "adapter" in changes or changes.get("checkpointing") == "selective"  # their profiles
    job, cluster, strategy = build(spread, **changes, kernels="cuda" if is_cuda else "cpu")
    predicted, simulated = estimate(job, cluster, strategy), simulate(job, cluster, strategy)
    said, truth = items(predicted.items), items(simulated.items)
    peak = simulated.simulated_peak_allocated_bytes
    off = predicted.predicted_peak_allocated_bytes - peak
    assert abs(off) <= PEAK_SHARE * (peak - truth.get(WORKSPACES, 0))
    for item in (PARAMETERS, GRADIENTS, GATHERED, REDUCED):
        assert said.get(item, 0) == truth.get(item, 0), item
    steps = truth[OPTIMIZER_STATE] - said[OPTIMIZER_STATE]
    assert 0 <= steps <= ADAMW_STEP_BYTES * len(trained_shapes(job))
    others = peak - sum(truth.get(item, 0) for item in (*STATES, WORKSPACES))
    said_others = sum(said.values()) - sum(said.get(item, 0) for item in (*STATES, WORKSPACES))
    assert said_others == pytest.approx(others, rel=1e-3)


def test_the_cases_are_what_they_should_be():
    spreads = [spread for spread, _ in CASES.values()]
    assert {spread["zero"] for spread in spreads} == {0, 1, 2, 3}
    assert {len(spread) for spread in spreads} == {2, 3}
    assert {changes.get("accumulate") for _, changes in CASES.values()} == {None, "hold"}


@pytest.mark.torch
def test_an_update_of_sgd_is_seen_whole_in_a_deep_model():
    """Its momentum is made from gradients that nobody owns, DDP's buckets: 9 % of the peak here."""
    model = make_model(**LLAMA | {"num_hidden_layers": 9})
    job = make_job(model=model, optimizer="sgd", seq_len=16, global_batch=4)
    strategy, cluster = make_strategy(micro_batch=1, **DDP), make_cluster()
    peak = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    assert predicted == pytest.approx(peak, rel=1e-3)


@pytest.mark.torch
def test_ddp_sends_copies_of_a_frozen_base_while_it_is_made():
    """Of adapters on short texts in small models that is the peak; here beside cuBLAS's memory."""
    few = {"adapter": LORA, "seq_len": 8, "precision": "bf16"}
    job, cluster, strategy = build(DDP, **few, kernels="cuda")
    predicted, simulated = estimate(job, cluster, strategy), simulate(job, cluster, strategy)
    (said, *_), (truth, *_) = predicted.phases, simulated.phases
    assert said.num_bytes == pytest.approx(truth.num_bytes, rel=1e-3)
    assert said.num_bytes > 1.5 * items(predicted.items)[PARAMETERS]


def test_the_share_of_one_device_is_the_largest():
    matrices = [Updated((rows, 1)) for rows in (10, 9, 9)]
    updated = [*matrices, Updated((2,))]
    share = largest_share(updated, 2)
    assert share.rank == 1
    assert share.parameters == matrices[1:]
    every = largest_share(updated, 1)
    assert sorted(every.parameters) == sorted(updated)
    assert every.rank == 0


def test_hidden_matrices_are_handed_out_before_larger_ones():
    table, hidden = Updated((100, 1)), Updated((10, 1), is_hidden=True)
    assert largest_share([table, hidden], 2) == (1, [table])
    assert largest_share([table._replace(is_hidden=True), hidden._replace(is_hidden=False)], 2) == (
        0, [table._replace(is_hidden=True)],
    )  # fmt: skip


def test_the_simulated_rank_is_the_fullest_of_zero_1():
    job, _, strategy = build(ZERO_1, tied=True)
    assert fullest_rank(job, strategy) == largest_share(trained_parameters(job), 4).rank
    assert fullest_rank(job, build(ZERO_3)[2]) == 0


@pytest.mark.parametrize("adapter", [None, LORA, HALF_BASE])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed", "bf16-master"])
def test_many_numbers_of_shards_are_one_after_another(adapter, precision):
    job, _, strategy = build(ZERO_3, precision=precision, adapter=adapter)
    numbers = np.array([1, 2, 3, 64, 511])
    family = family_of(job, strategy)._replace(num_data_parallel=1022)
    together = piece_bytes(
        job, family._replace(num_blocks=np.zeros(len(numbers)), num_shards=numbers)
    )
    for column, number in enumerate(numbers):
        alone = piece_bytes(job, family._replace(num_shards=int(number)))
        assert together[:, column].tolist() == alone[:, 0].tolist()
    shards = together[[Piece.BLOCK_SHARD, Piece.BLOCK_CAST, Piece.REST_CAST]]
    assert (np.diff(shards) <= 0).all()
    assert (np.diff(together[Piece.BLOCK, :3]) >= 0).all(), "padding never takes less"


def test_what_is_in_the_type_that_computes_is_not_cast():
    def casts(**changes):
        job, _, strategy = build(ZERO_3, **changes)
        pieces = piece_bytes(job, family_of(job, strategy))[:, 0]
        return pieces[Piece.BLOCK_CAST], pieces[Piece.REST_CAST], pieces[Piece.BLOCK] / 4

    assert casts(precision="bf16")[:2] == (0, 0)
    block, rest, gathered = casts(precision="bf16-mixed")
    assert block == gathered
    assert rest > 0
    adapters, rest, _ = casts(precision="bf16-mixed", adapter=HALF_BASE)
    assert 0 < adapters < block / 4, "the base is in 16 bits already"
    assert rest == 0


WAYS = [
    Way(zero, accumulate, is_first, is_last, widens, tied=False)
    for zero in (2, 3)
    for accumulate in ("reduce-each", "hold")
    for is_first, is_last in ((True, True), (True, False), (False, False), (False, True))
    for widens in (True, False)
]
PASSING = [
    piece for piece in Piece
    if not piece.name.endswith(("_SHARD", "_GRADIENTS", "_HELD", "_AMONG"))
]  # fmt: skip


@each("body", ["plain", "mixed", "checkpointed"])
@each("way", WAYS)
def test_what_comes_for_a_while_goes(way, body):
    """Over a micro-batch of 5 blocks; of a mixed body 3 are checkpointed."""
    profile = load_profile(PROFILE)
    spread, runs = spread_runs(profile, profile.variants[body].first, way)
    assert has_pieces(spread)
    counts = {"plain": 2 if body == "mixed" else 5, "checkpointed": 3 if body == "mixed" else 5}
    net = sum(
        _net(spread, run) * (counts[run.group] - 2 if run.role == "middle" else 1) for run in runs
    )
    assert {piece: net[piece] for piece in PASSING} == dict.fromkeys(PASSING, 0)
    if way.reduces and (way.is_first or way.accumulate == "hold"):
        assert net[Piece.BLOCK_SHARD] == 5
    elif way.reduces:
        assert net[Piece.BLOCK_AMONG] == 5
    else:
        assert net[Piece.BLOCK_SHARD] == 0
        assert net[Piece.BLOCK_HELD] == 5 * (way.is_first and way.widens)


def _net(profile, run):
    """Count the pieces that a run leaves behind: [pieces]."""
    base = len(profile.kinds) - 2 * NUM_PIECES
    events = np.array(profile.works[run.work].events)
    events = events[events >= base] - base
    signs = np.where(events < NUM_PIECES, 1, -1)
    return np.bincount(events % NUM_PIECES, weights=signs, minlength=NUM_PIECES)


@pytest.mark.parametrize("body", ["plain", "mixed"])
def test_one_member_of_a_group_is_one_run_of_two(body):
    for phase in ("forward", "backward"):
        runs = [r for r in load_profile(PROFILE).variants[body].first if r.phase == phase]
        none = {(r.group, r.role) for r in runs if is_block(r) and stands_for_none(r, tuple(runs))}
        front, back = ("plain", "checkpointed")[:: 1 if phase == "backward" else -1]
        assert none == ({(front, "last"), (back, "first")} if body == "mixed" else set())


@pytest.mark.parametrize("tuning", ["", "-qkvo", "-qv"])
def test_a_base_in_16_bits_runs_what_one_of_16_bits_does_once_gathered(tuning):
    targets = {"": ("all-linear",), "-qkvo": ("q_proj", "k_proj", "v_proj", "o_proj"),
               "-qv": ("q_proj", "v_proj")}[tuning]  # fmt: skip
    job, _, _ = build(ZERO_3, adapter=HALF_BASE | {"targets": targets})
    alone = program_of(job, "sdpa", "cuda", "full")
    gathered = program_of(job, "sdpa", "cuda", "full", gathers=True)
    assert (alone.tuning, alone.precision) == (f"lora-half{tuning}", "bf16-mixed")
    assert (gathered.tuning, gathered.precision) == (f"lora{tuning}", "bf16")


@pytest.mark.parametrize("optimizer", ["adafactor", "adamw-4bit", "adamw-fp8"])
def test_an_optimizer_that_takes_no_shards_is_refused(optimizer):
    job, _, strategy = build(ZERO_3, precision="fp32")
    job = msgspec.structs.replace(job, optimizer=optimizer)
    with pytest.raises(UnsupportedError, match=f"zero=3 with optimizer={optimizer}.*zero 0 or 1"):
        check_strategy(job, strategy)
    whole = build(DDP)[2]
    assert check_strategy(job, whole) == whole
