import datetime as dt
from importlib import resources

import pytest

from brimful.cost.profiles import load_profile
from brimful.errors import InputError
from brimful.simulate.profile import make_profile, program_named, shipped_keys
from samples import ALL_CASES

pytestmark = pytest.mark.torch

SMALLEST = "gpt2-tied.hf.fp32.sdpa.cpu"
ADAPTED = "gpt2-tied+lora.hf.bf16.sdpa.cuda.selective"


TODAY = dt.datetime.now(dt.UTC).date()
KEYS = (SMALLEST, ADAPTED)


@pytest.mark.parametrize("key", KEYS if ALL_CASES else [KEYS[TODAY.toordinal() % len(KEYS)]])
def test_a_shipped_profile_can_be_derived_again(key):
    """One of them, another one every day."""
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


def test_every_key_names_its_program():
    named = [program_named(key) for key in shipped_keys()]
    assert [program.key for program in named] == list(shipped_keys())
    assert len(set(named)) == len(named)


@pytest.mark.parametrize("key", ["", "llama", "bert.hf.fp32.sdpa.cpu", "llama.te.fp32.sdpa.cpu"])
def test_what_is_no_key_is_refused(key):
    with pytest.raises(InputError, match="profile"):
        program_named(key)
