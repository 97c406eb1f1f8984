"""When a job drops, what its switches then change, and what is refused beside it."""

import pytest

from brimful.errors import UnsupportedError
from brimful.models.config import read_config
from brimful.models.dropout import dropout_of
from brimful.models.module import read_factory
from brimful.techniques.dropout import check_undropped, dropout_words, drops, rates
from brimful.techniques.exact import exactness
from brimful.techniques.kernel_support import Place, why_not
from brimful.techniques.runnable import check_strategy
from pairs import PREFERENCE
from samples import TINY_GPT2, TINY_LLAMA, make_job, make_model, make_strategy

GPT2 = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}


def dropping(architecture="gpt2", **changes):
    return make_job(architecture, dropout="model", **changes)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (TINY_GPT2, GPT2),
        ({**TINY_GPT2, "id2label": {0: "no", 1: "yes"}}, GPT2),
        ({**TINY_GPT2, **GPT2, "resid_pdrop": 0, "attn_pdrop": None}, {"embd_pdrop": 0.1}),
        (TINY_LLAMA, {}),
        ({**TINY_LLAMA, "attention_dropout": 0.2}, {"attention_dropout": 0.2}),
    ],
)
def test_what_a_configuration_leaves_out_is_its_class_s_own(config, found):
    assert dropout_of(read_config("tiny", config)) == found


def test_what_a_head_of_classes_drops_is_of_those_that_classify():
    model = read_config("tiny", TINY_GPT2)
    assert dropout_of(model, classifies=True) == {**GPT2, "summary_first_dropout": 0.1}


def test_nothing_is_dropped_where_nobody_asks_or_no_probability_is_above_zero():
    assert not drops(make_job("gpt2"))
    assert not drops(dropping("llama"))
    assert drops(dropping())
    assert drops(make_job(model=read_factory("mine:net"), task="module", packing="none",
                          dropout="model"))  # fmt: skip
    assert (dropout_words(make_job("gpt2")), dropout_words(dropping())) == ("off", "0.1")
    assert rates(make_job("gpt2")) == GPT2


def test_other_masks_are_drawn_by_what_runs_together_and_the_same_by_what_runs_again():
    job = dropping()
    assert exactness(job, "micro_batch", 1).how == "drawn"
    assert "exact in distribution, not in numbers" in exactness(job, "micro_batch", 1).reason
    assert exactness(job, "attention", "sdpa").how == "drawn"
    same = {"micro_batch": 4, "attention": "eager", "loss_chunks": 7, "data_parallel": 2}
    for field, value in {**same, "activation_checkpointing": "full"}.items():
        assert exactness(job, field, value).is_exact


@pytest.mark.parametrize(
    ("switches", "nearest"),
    [
        ({"pp": 2, "accumulate": "hold"}, {"pp": 1}),
        ({"attention": "flex"}, {"attention": "sdpa"}),
    ],
)
def test_what_was_not_compared_is_refused_with_the_nearest(switches, nearest):
    with pytest.raises(UnsupportedError, match="dropout=model with ") as refused:
        check_strategy(dropping(), make_strategy(**switches))
    assert refused.value.nearest == nearest


def test_deepspeeds_engine_drops_as_ours_does():
    job, engine = dropping(precision="fp32"), {"engine": "deepspeed", "accumulate": "reduce-each"}
    assert check_strategy(job, make_strategy(zero=1, dp_shard=2, **engine)).zero == 1


def test_matrices_are_not_cut_where_masks_would_have_to_agree():
    job = dropping("llama", model=make_model(attention_dropout=0.1))
    with pytest.raises(UnsupportedError, match="draw alike for whole activations and apart"):
        check_strategy(job, make_strategy(tp=2))


def test_blocks_that_chance_leaves_out_are_refused():
    opt = {"model_type": "opt", "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2,
           "num_attention_heads": 4, "vocab_size": 97, "layerdrop": 0.1}  # fmt: skip
    job = make_job(model=read_config("tiny", opt), dropout="model")
    with pytest.raises(UnsupportedError, match="with layerdrop above 0 is not run"):
        check_strategy(job, make_strategy())


def test_a_reference_does_not_drop():
    job = dropping(task="dpo", preference=PREFERENCE, packing="none")
    with pytest.raises(UnsupportedError, match="whose reference must not drop"):
        check_strategy(job, make_strategy(reference="resident"))


def test_the_doctor_compares_runs_without_it():
    check_undropped(make_job("gpt2"))
    with pytest.raises(UnsupportedError, match="other recipes draw other masks; use dropout=off"):
        check_undropped(dropping())


def test_a_cpu_has_no_fused_kernel_that_drops():
    cpu = Place("cpu", 0.0)
    assert "no dropout" in why_not(dropping(), "flash", cpu)
    assert why_not(make_job("gpt2"), "flash", cpu) is None
    assert why_not(dropping(), "sdpa", cpu) is None
