"""What tensor parallelism runs, and what it says of the rest; without torch."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import InputError, UnsupportedError
from brimful.models.config import load_model
from brimful.techniques.parallel import tensor as tensor_split
from brimful.techniques.parallel.tensor import CUT_DECODERS, check_tensor
from brimful.techniques.runnable import check_strategy
from brimful.train.data.rows import PAD_MULTIPLE
from other_decoders import make_decoder_job
from samples import make_adapter, make_job, make_model, make_strategy

WIDE = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "vocab_size": 1000,
}


def wide_job(**changes):
    config = {**WIDE, **{name: changes.pop(name) for name in WIDE if name in changes}}
    return make_job(model=make_model(**config), seq_len=changes.pop("seq_len", 64), **changes)


@pytest.mark.parametrize(
    ("tp", "changes", "said"),
    [
        (3, {}, r"tp=3 does not divide num_heads=32 of tiny-llama; use 1, 2, 4, 8$"),
        (16, {}, r"tp=16 does not divide num_kv_heads=8 of tiny-llama; use 1, 2, 4, 8$"),
        (8, {"intermediate_size": 1028}, r"tp=8 does not divide intermediate_size=1028 .* 1, 2, 4"),
        (8, {"seq_len": 60}, r"tp=8 does not divide seq_len=60; use 1, 2, 4$"),
        (8, {"vocab_size": 9}, r"tp=8 devices with 2 rows each of vocab_size=9 leave the last"),
        (
            16,
            {"num_key_value_heads": 16, "packing": "none"},
            r"tp=16 does not divide 8, to multiples of which packing=none pads rows; use 1, 2, 4",
        ),
    ],
)
def test_a_degree_that_divides_not_everything_is_refused_with_both_numbers(tp, changes, said):
    with pytest.raises(InputError, match=said):
        check_strategy(wide_job(**changes), make_strategy(tp=tp))


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_degrees_that_divide_everything_are_taken(tp):
    strategy = make_strategy(tp=tp)
    assert check_strategy(wide_job(), strategy) is strategy


def test_uneven_vocabularies_are_taken():
    check_strategy(wide_job(vocab_size=1001), make_strategy(tp=8))


@given(st.integers(2, 64), st.integers(1, 300))
def test_a_vocabulary_is_taken_where_every_device_has_a_row_of_it(tp, vocab_size):
    sizes = {"num_attention_heads": tp, "num_key_value_heads": tp, "intermediate_size": 4 * tp,
             "hidden_size": 2 * tp}  # fmt: skip
    job = wide_job(**sizes, vocab_size=vocab_size, seq_len=tp)
    rows = -(-vocab_size // tp)
    last = range(vocab_size)[(tp - 1) * rows : tp * rows]
    if last:
        check_tensor(job, tp)
    else:
        with pytest.raises(InputError, match="leave the last without any"):
            check_tensor(job, tp)


@pytest.mark.parametrize(
    ("job", "changes", "said"),
    [
        (make_job("gpt2"), {}, r"gpt2 holds several matrices in one \(c_attn\).*use tp=1"),
        (make_decoder_job("phi3"), {}, r"several matrices in one \(qkv_proj and gate_up_proj\)"),
        (make_decoder_job("mixtral"), {}, r"experts parted among devices, not cut; use ep=2"),
        (
            make_decoder_job("deepseek_v3"),
            {},
            r"model_type=deepseek_v3, task=causal-lm.*cuts, as causal",
        ),
        (make_job(method="lora", adapter=make_adapter()), {}, "tp=2 with method=lora"),
        (make_job(optimizer="muon"), {}, "tp=2 with optimizer=muon"),
        (make_job(optimizer="adafactor"), {}, "tp=2 with optimizer=adafactor"),
    ],
)
def test_what_is_not_run_is_refused_with_the_reason(job, changes, said):
    with pytest.raises(UnsupportedError, match=said):
        check_strategy(job, make_strategy(tp=2, micro_batch=1, **changes))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_pieces_are_taken_by_every_stage_of_zero(zero):
    among = {"dp_shard": 2} if zero else {"dp_replicate": 2}
    check_strategy(wide_job(), make_strategy(tp=2, zero=zero, micro_batch=1, **among))


def test_rows_are_padded_to_what_the_data_pads_them_to():
    assert tensor_split.PADDED_MULTIPLE == PAD_MULTIPLE


def test_asking_needs_no_torch():
    code = "import sys, brimful.values.strategy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_architecture_that_is_cut_can_be_checked():
    for kind in CUT_DECODERS - {"llama"} | {"granite", "smollm3", "gemma3_text"}:
        check_tensor(make_decoder_job(kind), 2)


def test_heads_that_do_not_divide_are_the_reason_whatever_is_trained():
    """Full training would be refused for them too, so that it is no way out."""
    job = make_job(model=load_model("llama-2-13b"), method="lora", adapter=make_adapter())
    with pytest.raises(UnsupportedError, match=r"tp=3 does not divide num_heads=40") as caught:
        check_tensor(job, 3)
    assert "method=full" not in str(caught.value)
    assert caught.value.nearest == {"tp": 1}
    with pytest.raises(UnsupportedError, match="use tp=1, or method=full"):
        check_tensor(job, 4)


def test_what_no_plan_cuts_is_refused_by_its_name():
    with pytest.raises(UnsupportedError, match=r"tiny-phi3: phi3 holds several matrices in one"):
        check_tensor(make_decoder_job("phi3"), 2)
    with pytest.raises(UnsupportedError, match=r"model_type=gpt_oss.* cuts, as causal-lm and chat"):
        check_tensor(make_decoder_job("gpt_oss"), 2)
