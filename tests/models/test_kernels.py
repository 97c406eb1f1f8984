"""Which attention a model's own code goes through, said without importing it."""

import pytest

from brimful.errors import UnsupportedError
from brimful.models.architectures import ARCHITECTURES
from brimful.models.attention_source import OWN_ATTENTION, left_out_of, scores_of
from brimful.models.config import SEQ2SEQ_TYPES
from brimful.models.kernels import OWN_SCORES, attentions_of, check_taken, left_out
from brimful.values.job import plain_job
from other_decoders import make_decoder


def test_keywords_that_fused_kernels_do_not_heed_are_named():
    call = "y = attention_interface(self, query, scaling=1, {})"
    assert scores_of(call.format("sliding_window=3")) == ""
    assert scores_of(call.format("softcap=self.cap")) == "cap on scores"
    assert scores_of(call.format("s_aux=self.sinks, tau=2")) == "sinks of attention and tau"


def test_models_that_change_their_scores_are_run_with_written_out_attention_only():
    for model_type in ("gemma2", "gpt_oss"):
        job = plain_job(make_decoder(model_type))
        assert attentions_of(job) == ("eager",)
        with pytest.raises(UnsupportedError, match=r"leave out the (cap|sinks) .*; use eager"):
            check_taken(job, "sdpa")
        assert check_taken(job, "eager") == "eager"
    assert left_out(make_decoder("qwen3_moe")) == ""


@pytest.mark.torch
def test_what_architectures_say_of_their_scores_is_what_their_classes_do():
    decoders = set(ARCHITECTURES) - SEQ2SEQ_TYPES
    read = {model_type: left_out_of(model_type) for model_type in decoders}
    assert {name: what for name, what in read.items() if what} == OWN_SCORES


@pytest.mark.torch
def test_other_architectures_are_asked_by_their_source():
    assert left_out_of("starcoder2") == ""
    assert left_out_of("vaultgemma") == "cap on scores"
    assert left_out_of("gptj") == OWN_ATTENTION
    assert left_out_of("no_such_type") == ""
