"""Judging, saving and resuming: formulas against the trainer's own code on the pretend GPU."""

import random

import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.eval_phase import other_phases
from brimful.cost.profiles import EVALUATED, is_shipped, load_profile
from brimful.simulate.lifetime import peak_bytes, simulate_phases
from brimful.simulate.profile import make_profile, shipped_eval_keys
from brimful.techniques.runnable import check_strategy
from brimful.train.keeping import KEEPING
from brimful.values.results import EVAL, ITEM_NAMES, OPTIMIZER_STATE, PARAMETERS, RESUME, SAVE
from brimful.values.strategy import data_parallel
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

NUM_CASES = 64
SEED = 11
BAR = 2e-3
"""Of the peak; 1 % is what is asked for. Ignored are scalars of the optimizer, 4 bytes each."""
SPREADS = (
    {},
    {"zero": 0, "dp_replicate": 4},
    {"zero": 1, "dp_shard": 4},
    {"zero": 2, "dp_shard": 4},
    {"zero": 3, "dp_shard": 4},
    {"zero": 3, "dp_shard": 4, "dp_replicate": 2},
)


def draw(rng, number):
    """Draw a job, a cluster and a strategy; spreads and architectures take turns."""
    spread, architecture = SPREADS[number % len(SPREADS)], ("llama", "gpt2")[number // 6 % 2]
    tuned = rng.random() < 0.25
    kernels = "cuda" if tuned else rng.choice(("cpu", "cuda"))
    layers, vocab = rng.choice((1, 2, 4)), rng.choice((1000, 3000))
    sizes = {
        "llama": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": layers},
        "gpt2": {"n_embd": 128, "n_inner": 352, "n_layer": layers},
    }[architecture]
    switches = {
        "micro_batch": rng.choice((1, 2)),
        "activation_checkpointing": rng.choice(("none", "full")),
        "loss_chunks": rng.choice((1, 1, 2, 3, 7)),
        "attention": "sdpa" if tuned else rng.choice(("sdpa", "eager")),
    }
    recipes = ("fp32", "bf16", "bf16-mixed", "bf16-master", "fp16-mixed")
    precision = rng.choice(("bf16", "bf16-mixed") if tuned else recipes)
    zero = spread.get("zero", 0)
    if zero > 1 and precision.endswith("-mixed"):  # without a formula: masks are fp32
        switches["attention"] = "sdpa"
    strategy = make_strategy(**switches, **spread)
    job = make_job(
        architecture,
        model=make_model(architecture, vocab_size=vocab, **sizes),
        precision=precision,
        seq_len=rng.choice((64, 128)),
        global_batch=strategy.micro_batch * data_parallel(strategy) * rng.choice((1, 2)),
    )
    if tuned:
        job = msgspec.structs.replace(job, method="lora", adapter=make_adapter(rank=8))
    num_devices = data_parallel(strategy)
    cluster = make_cluster(kernels)
    cluster = msgspec.structs.replace(cluster, num_devices=num_devices)
    return job, cluster, check_strategy(job, strategy)


def cases():
    rng = random.Random(SEED)  # noqa: S311 - cases, not secrets
    return [draw(rng, number) for number in range(NUM_CASES)]


@pytest.mark.few(1)
@pytest.mark.parametrize("number", range(NUM_CASES))
def test_the_prediction_is_what_the_trainers_own_code_takes(number):
    asked = cases()[number]
    predicted = estimate(*asked)
    peaks = {phase.phase: phase.num_bytes for phase in predicted.phases}
    found = simulate_phases(*asked, KEEPING, (EVAL, SAVE, RESUME))
    for content in found:
        assert peaks[content.phase] == pytest.approx(peak_bytes(content), rel=BAR)
        assert peaks[content.phase] <= peaks["step 2+"]
        assert peak_bytes(content) <= (1 + BAR) * peaks["step 2+"]
    assert predicted.predicted_peak_allocated_bytes == max(
        peaks[name] for name in ("load", "step 1", "step 2+")
    )


def test_the_draw_covers_what_it_should():
    drawn = cases()
    assert {job.method for job, _, _ in drawn} == {"full", "lora"}
    assert len({job.precision for job, _, _ in drawn}) == 5
    assert {strategy.zero for _, _, strategy in drawn} == {0, 1, 2, 3}
    assert len({strategy.loss_chunks for _, _, strategy in drawn}) == 4
    assert {cluster.device.kernels for _, cluster, _ in drawn} == {"cpu", "cuda"}


def test_what_is_alive_is_named():
    """Between steps there are parameters, state and little else; and a loss is judged by logits."""
    job, cluster, strategy = make_job(), make_cluster(), make_strategy()
    judged, saved, resumed = simulate_phases(job, cluster, strategy, KEEPING, (EVAL, SAVE, RESUME))
    for content in (saved, resumed):
        named = {item.name: item.num_bytes for item in content.items}
        lasting = named[PARAMETERS] + named[OPTIMIZER_STATE]
        assert lasting == pytest.approx(peak_bytes(content), rel=1e-3)
        assert content.owners[0].item in {PARAMETERS, OPTIMIZER_STATE}
    assert peak_bytes(judged) > peak_bytes(saved)
    assert {item.phase for item in judged.items} == {EVAL}
    assert {item.name for item in judged.items} <= set(ITEM_NAMES)


def test_judging_has_no_use_for_checkpointing():
    job, device = make_job(), make_cluster().device
    strategies = [
        make_strategy(activation_checkpointing=blocks) for blocks in ("none", "full:1", "full")
    ]
    memory = estimate_memory(job, strategies[0], device)
    peaks = {other_phases(job, s, device, memory)[0].num_bytes for s in strategies}
    assert len(peaks) == 1


def estimate_memory(job, strategy, device):
    from brimful.cost.family import family_of
    from brimful.cost.memory import profile_for, step_memory

    profile = profile_for(job, strategy.attention, device, family_of(job, strategy))
    return step_memory(job, strategy, profile, device)


def test_every_program_is_shipped_without_gradients_too():
    assert all(map(is_shipped, shipped_eval_keys()))


SOME = ("gpt2-tied.hf.fp32.sdpa.cpu", "llama+lora.hf.bf16.sdpa.cuda")


@pytest.mark.few(1)
@pytest.mark.parametrize("key", SOME)
def test_a_shipped_profile_without_gradients_can_be_derived_again(key):
    shares = []
    made = make_profile(key + EVALUATED, on_progress=shares.append)
    shipped = load_profile(key + EVALUATED)
    assert (made.kinds, made.works, made.variants) == (
        shipped.kinds, shipped.works, shipped.variants
    )  # fmt: skip
    assert shares[-1] == 1
