"""Every recipe with every optimizer: what is kept and what the update needs, against simulation."""

import itertools
import random

import pytest

from brimful.build.assemble import build_skeleton
from brimful.build.precision.masters import BUCKET_BYTES
from brimful.cost import update
from brimful.cost.estimate import estimate
from brimful.cost.programs import TRACED_AS
from brimful.cost.shapes import parameter_shapes
from brimful.cost.update import CPU, update_of
from brimful.simulate.run import simulate
from brimful.values.job import SCALED, LossScale
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

NUM_LAYERS = 3
FACTORS = {
    "precision": tuple(TRACED_AS),
    "optimizer": ("adamw", "adamw-foreach", "adamw-8bit", "sgd", "adafactor"),
    "checkpointing": ("none", "full:1", "full"),
    "architecture": ("llama", "gpt2"),
    "kernels": ("cpu", "cuda"),
}
WIDE = {"hidden_size": 128, "intermediate_size": 384, "vocab_size": 2048}
WIDE_GPT2 = {"n_embd": 128, "n_inner": 384, "vocab_size": 2048}
SCALE = LossScale(initial_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=9)


def pairs_of(cell):
    return set(itertools.combinations(cell.items(), 2))


def pairwise_cells(seed):
    """Choose cells until every pair of values of two factors was in one of them."""
    rng = random.Random(seed)  # noqa: S311 - cases, not secrets
    values = itertools.product(*FACTORS.values())
    every = [dict(zip(FACTORS, chosen, strict=True)) for chosen in values]
    missing, chosen = set().union(*map(pairs_of, every)), []
    while missing:
        best = max(rng.sample(every, 60), key=lambda cell: len(missing & pairs_of(cell)))
        if missing & pairs_of(best):
            chosen.append(best)
            missing -= pairs_of(best)
    return chosen


CELLS = pairwise_cells(seed=4)


def job_of(*, precision, optimizer, architecture="llama", **changes):
    sizes = WIDE if architecture == "llama" else WIDE_GPT2
    return make_job(
        architecture,
        model=make_model(architecture, **sizes),
        precision=precision,
        optimizer=optimizer,
        loss_scale=SCALE if precision in SCALED else None,
        seq_len=64,
        global_batch=2,
        **changes,
    )


@pytest.mark.few
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join(cell.values()))
def test_the_prediction_is_the_simulation(cell):
    job = job_of(**{k: cell[k] for k in ("precision", "optimizer", "architecture")})
    cluster = make_cluster(cell["kernels"])
    strategy = make_strategy(micro_batch=1, activation_checkpointing=cell["checkpointing"])
    predicted, simulated = estimate(job, cluster, strategy), simulate(job, cluster, strategy)
    peak = simulated.simulated_peak_allocated_bytes
    assert predicted.predicted_peak_allocated_bytes == pytest.approx(peak, rel=1e-3)
    for mine, theirs in zip(predicted.phases[:3], simulated.phases, strict=True):
        if mine.phase != "step 1":  # whose peak may lie before cuBLAS has both workspaces
            assert mine.num_bytes == pytest.approx(theirs.num_bytes, rel=1e-3)


@pytest.mark.few(1)
@pytest.mark.parametrize("optimizer", ["adamw-foreach", "adamw-8bit", "adafactor"])
def test_many_buckets_of_masters_are_cut_as_they_are_run(optimizer):
    sizes = {"hidden_size": 1536, "intermediate_size": 4096, "vocab_size": 8000}
    job = make_job(
        model=make_model(**sizes), precision="bf16-master", optimizer=optimizer, seq_len=16
    )
    asked = job, make_cluster(), make_strategy(micro_batch=1)
    predicted, simulated = estimate(*asked), simulate(*asked)
    for mine, theirs in zip(predicted.phases[:3], simulated.phases, strict=True):
        assert mine.num_bytes == pytest.approx(theirs.num_bytes, rel=1e-3)
    assert max(simulated.phases, key=lambda phase: phase.num_bytes).where.endswith("optimizer")


def test_the_cover_has_every_recipe_with_every_optimizer():
    found = {(cell["precision"], cell["optimizer"]) for cell in CELLS}
    assert len(found) == len(FACTORS["precision"]) * len(FACTORS["optimizer"])


def test_constants_of_the_build_path_stand_twice_and_agree():
    assert BUCKET_BYTES == update.MASTERS_BUCKET_BYTES


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
        ("llama", {"head_dim": 24}),
        ("gpt2", {}),
        ("gpt2", {"tie_word_embeddings": False, "n_inner": None}),
    ],
)
def test_shapes_are_those_that_transformers_builds_in_its_order(architecture, changes):
    job = make_job(model=make_model(architecture, **changes))
    built = build_skeleton(job, make_strategy())
    assert parameter_shapes(job.model) == [tuple(p.shape) for p in built.parameters()]


def test_a_parameter_larger_than_the_bucket_is_widened_alone():
    """Its fp32 gradient is then the whole transient, whatever else there is."""
    model = make_model(hidden_size=64, vocab_size=400_000)
    job = make_job(model=model, precision="bf16-master")
    assert update_of(job, CPU).transient == 4 * 400_000 * 64 > update.MASTERS_BUCKET_BYTES


def test_sgd_without_momentum_keeps_nothing():
    job = job_of(precision="fp32", optimizer="sgd", beta1=0.0)
    assert update_of(job, CPU)[:2] == (0, 0)
    with_momentum = job_of(precision="fp32", optimizer="sgd", beta1=0.9)
    assert update_of(with_momentum, CPU).kept > 0


def test_an_optimizer_that_keeps_less_is_said_to_and_the_order_is_the_known_one():
    names = ("adafactor", "adamw-8bit", "sgd", "adamw")
    kept = [update_of(job_of(precision="fp32", optimizer=name), CPU).kept for name in names]
    assert kept == sorted(kept)
    assert len(set(kept)) == len(names)
