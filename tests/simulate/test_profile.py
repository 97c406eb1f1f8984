import pytest

from brimful.cost.profiles import load_profile
from brimful.errors import InputError
from brimful.simulate.profile import make_profile, split_key

pytestmark = pytest.mark.torch

SMALLEST = "gpt2-tied.hf.fp32.sdpa.cpu"


def test_a_shipped_profile_can_be_derived_again():
    shares = []
    made, shipped = make_profile(SMALLEST, on_progress=shares.append), load_profile(SMALLEST)
    assert made.kinds == shipped.kinds
    assert made.works == shipped.works
    assert made.variants == shipped.variants
    assert made.key == shipped.key == SMALLEST
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_a_key_is_taken_apart():
    assert split_key("llama-mha.hf.bf16-mixed.eager.cuda") == (
        "llama-mha",
        "bf16-mixed",
        "eager",
        "cuda",
    )


@pytest.mark.parametrize("key", ["", "llama", "bert.hf.fp32.sdpa.cpu", "llama.te.fp32.sdpa.cpu"])
def test_what_is_no_key_is_refused_with_the_form_of_one(key):
    with pytest.raises(InputError, match=r"ARCHITECTURE\.hf\.PRECISION"):
        split_key(key)
