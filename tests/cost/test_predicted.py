"""The first rung against the second: formulas give what the simulation of the whole model gives."""

import random

import pytest
import torch

from brimful.cost import programs
from brimful.cost.estimate import estimate
from brimful.cost.family import family_counts, family_of
from brimful.cost.memory import blas_bytes, step_memory
from brimful.cost.profiles import load_profile
from brimful.cost.programs import program_of
from brimful.errors import UnsupportedError
from brimful.pretend import attention_choice
from brimful.simulate.run import simulate
from brimful.values.results import BUFFERS, GRADIENTS, OPTIMIZER_STATE, PARAMETERS
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

NUM_CASES = 12
SEED = 20
STATES = (PARAMETERS, BUFFERS, GRADIENTS, OPTIMIZER_STATE)
ADAMW_STEP_BYTES = 4


def draw(rng, number):
    """Draw a job, a device and a strategy; architectures and kernels take turns."""
    architecture = ("llama", "gpt2")[number % 2]
    kernels = ("cpu", "cuda")[number // 2 % 2]
    num_layers, head_dim = rng.choice((1, 2, 3, 5, 7)), rng.choice((32, 64))
    attention = rng.choice(("sdpa", "eager"))
    kv_heads, per_kv = rng.choice((1, 2) if attention == "sdpa" else (2, 3)), rng.choice((2, 4))
    heads = kv_heads * per_kv
    hidden, vocab = heads * head_dim, rng.choice((4000, 8192, 16000))
    if architecture == "llama":
        sizes = {
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": num_layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
        }
    else:
        sizes = {"n_embd": hidden, "n_inner": 3 * hidden, "n_layer": num_layers, "n_head": heads}
    blocks = rng.choice((0, num_layers, rng.randint(0, num_layers)))
    micro_batch = rng.choice((1, 2, 3))
    job = make_job(
        architecture,
        model=make_model(architecture, vocab_size=vocab, **sizes),
        precision=rng.choice(("fp32", "bf16", "bf16-mixed")),
        seq_len=rng.choice((256, 320, 512)),
        global_batch=micro_batch * rng.choice((1, 1, 2, 3)),
    )
    strategy = make_strategy(
        micro_batch=micro_batch,
        activation_checkpointing=f"full:{blocks}" if blocks else "none",
        loss_chunks=rng.choice((1, 2, 3, 4, 7)),
        attention=attention,
    )
    return job, make_cluster(kernels), strategy


def cases():
    rng = random.Random(SEED)  # noqa: S311 - cases, not secrets
    return [draw(rng, number) for number in range(NUM_CASES)]


def other_bytes(items):
    return sum(item.num_bytes for item in items if item.name not in STATES)


@pytest.mark.few(4)
@pytest.mark.parametrize("number", range(NUM_CASES))
def test_the_prediction_is_the_simulation(number):
    job, cluster, strategy = cases()[number]
    predicted, simulated = estimate(job, cluster, strategy), simulate(job, cluster, strategy)
    peak = simulated.simulated_peak_allocated_bytes
    assert abs(predicted.predicted_peak_allocated_bytes - peak) <= 1e-4 * peak
    activations = other_bytes(simulated.items)
    assert abs(other_bytes(predicted.items) - activations) <= 5e-3 * activations
    # Backward's first product brings its thread's workspace: a peak of step 1 may lie before it.
    late = blas_bytes(job, family_of(job, strategy), cluster.device)[0] // 2
    for mine, theirs in zip(predicted.phases[:3], simulated.phases, strict=True):
        assert mine.phase == theirs.phase
        late_here = late if mine.phase == "step 1" else 0
        assert -2e-4 * theirs.num_bytes <= mine.num_bytes - theirs.num_bytes
        assert mine.num_bytes - theirs.num_bytes <= 2e-4 * theirs.num_bytes + late_here


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("changes", "precision", "attention", "kernels", "words"),
    [
        ({"num_key_value_heads": 1}, "fp32", "eager", "cpu", "num_kv_heads=1.*sdpa"),
        ({"head_dim": 20}, "bf16", "sdpa", "cuda", "head_dim=20.*multiples of 8"),
        ({"head_dim": 264}, "bf16-mixed", "sdpa", "cuda", "head_dim=264.*256"),
    ],
)
def test_a_code_path_that_was_not_traced_is_refused(changes, precision, attention, kernels, words):
    """And rightly so: the formulas of the nearest profile would be off."""
    job = make_job(model=make_model(**changes), precision=precision, seq_len=256, global_batch=1)
    cluster, strategy = make_cluster(kernels), make_strategy(micro_batch=1, attention=attention)
    with pytest.raises(UnsupportedError, match=words):
        estimate(job, cluster, strategy)
    key = program_of(job, attention, kernels, "full").key
    guess = step_memory(job, strategy, load_profile(key), cluster.device).items.sum()
    states = (PARAMETERS, BUFFERS, OPTIMIZER_STATE)
    items = simulate(job, cluster, strategy).items
    assert abs(guess / sum(i.num_bytes for i in items if i.name not in states) - 1) > 5e-3


def test_the_limits_of_flash_attention_stand_twice_and_agree():
    assert programs.FLASH_MAX_HEAD_DIM == attention_choice.FLASH_MAX_HEAD_DIM
    assert programs.FLASH_HEAD_DIM_MULTIPLE == attention_choice.HEAD_DIM_MULTIPLE


def test_chunks_that_do_not_divide_the_tokens_are_counted_as_torch_cuts_them():
    job, cluster = make_job(seq_len=100, global_batch=1), make_cluster()
    for num_chunks in (7, 40, 99):
        strategy = make_strategy(micro_batch=1, loss_chunks=num_chunks)
        real = len(torch.zeros(job.seq_len).chunk(num_chunks))
        assert family_counts(job, family_of(job, strategy))["chunk"].tolist() == [real]
        peak = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
        predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
        assert predicted == pytest.approx(peak, rel=2e-4)


def test_buckets_of_masters_are_cut_in_a_deep_model_too():
    """The update of a few blocks does not say where the buckets of many are cut."""
    model = make_model(
        hidden_size=256, intermediate_size=768, num_hidden_layers=12, vocab_size=512
    )  # fmt: skip
    job = make_job(model=model, precision="bf16-master", seq_len=16, global_batch=1)
    strategy, cluster = make_strategy(micro_batch=1), make_cluster()
    peak = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    assert predicted == pytest.approx(peak, rel=2e-4)


def test_the_sweep_covers_what_it_should():
    drawn = cases()
    assert {job.precision for job, _, _ in drawn} == {"fp32", "bf16", "bf16-mixed"}
    assert {strategy.attention for _, _, strategy in drawn} == {"sdpa", "eager"}
    assert len({strategy.loss_chunks for _, _, strategy in drawn}) >= 3
    assert len({strategy.activation_checkpointing for _, _, strategy in drawn}) >= 3
    assert {job.global_batch > strategy.micro_batch for job, _, strategy in drawn} == {True, False}


@pytest.mark.few(3)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_states_are_exact_but_for_the_step_counts(architecture, precision):
    job = make_job(architecture, precision=precision, global_batch=4)
    strategy = make_strategy(micro_batch=2)
    predicted = {i.name: i.num_bytes for i in estimate(job, make_cluster(), strategy).items}
    simulated = {i.name: i.num_bytes for i in simulate(job, make_cluster(), strategy).items}
    assert predicted[PARAMETERS] == simulated[PARAMETERS]
    assert predicted[GRADIENTS] == simulated[GRADIENTS]
    steps = simulated[OPTIMIZER_STATE] - predicted[OPTIMIZER_STATE]
    per_block, outside = (9, 3) if architecture == "llama" else (12, 4)
    assert steps == ADAMW_STEP_BYTES * (per_block * job.model.num_layers + outside)
