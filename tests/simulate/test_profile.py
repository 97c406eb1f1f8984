from importlib import resources

import pytest

from brimful.cost.profiles import load_profile
from brimful.cost.programs import code_of
from brimful.errors import InputError
from brimful.simulate.profile import ARCHITECTURES, make_profile, program_named, shipped_keys
from brimful.simulate.small_models import SHAPES, small_model
from brimful.simulate.two_chunks import told_apart

pytestmark = pytest.mark.torch

SMALLEST = "gpt2-tied.hf.fp32.sdpa.cpu"
ADAPTED = "gpt2-tied+lora.hf.bf16.sdpa.cuda.selective"
ROUTED = "qwen3_moe.hf.bf16.sdpa.cuda.selective"
CAPPED = "gemma2-tied.hf.bf16.eager.cuda.selective"
CUT = "llama-tp.hf.bf16.sdpa.cuda.selective"


KEYS = (SMALLEST, ADAPTED, ROUTED, CAPPED, CUT)


@pytest.mark.long
@pytest.mark.parametrize("key", KEYS)
def test_a_shipped_profile_can_be_derived_again(key):
    shares = []
    made, shipped = make_profile(key, on_progress=shares.append), load_profile(key)
    assert made.kinds == shipped.kinds
    assert made.works == shipped.works
    assert made.variants == shipped.variants
    assert made.key == shipped.key == key
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_what_is_shipped_is_what_can_be_traced():
    folder = resources.files("brimful").joinpath("data/profiles")
    shipped = {file.name.removesuffix(".json") for file in folder.iterdir()}
    assert shipped == set(shipped_keys())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_small_model_runs_the_block_it_is_named_after(architecture):
    model = small_model(architecture, SHAPES[0], num_layers=2)
    flags = set(architecture.split("-")[1:])
    code = code_of(model)
    assert architecture.startswith(code)
    assert model.tied_embeddings == ("tied" in flags)
    assert (model.num_kv_heads == model.num_heads) == (code.startswith("gpt2") or "mha" in flags)


def test_every_key_names_its_program():
    named = [program_named(key) for key in shipped_keys()]
    assert [program.key for program in named] == list(shipped_keys())
    assert len(set(named)) == len(named)


@pytest.mark.parametrize("key", ["", "llama", "bert.hf.fp32.sdpa.cpu", "llama.te.fp32.sdpa.cpu"])
def test_what_is_no_key_is_refused(key):
    with pytest.raises(InputError, match="profile"):
        program_named(key)


@pytest.mark.parametrize("key", KEYS)
def test_a_loss_in_two_chunks_is_spelled_in_chunks(key):
    shipped = load_profile(key)
    again = told_apart(shipped)
    assert again.variants == shipped.variants
    assert again.works == shipped.works[: len(again.works)]  # behind them: of one sequence
    for name, variant in shipped.variants.items():
        chunks = [run for run in variant.first if run.group == "chunk" and run.phase == "forward"]
        kinds = {kind for run in chunks for kind in shipped.works[run.work].events}
        logits = [
            t.factors for kind in kinds for t in shipped.kinds[kind].terms if "V" in t.factors
        ]
        assert bool(logits) == ("chunks" in name)
        assert all(factors == "CV" for factors in logits)
