"""Where scores are written out another exact kernel is searched beside, and only there."""

import argparse

import pytest

from brimful.cli import searching
from brimful.cli.main import parse
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search.attending import beside_usual
from brimful.search.gains import Search
from brimful.search.pins import Pins
from brimful.search.tries import _attentions
from samples import make_job


@pytest.mark.parametrize(
    ("model", "precision", "gpu", "others"),
    [
        ("qwen3-4b", "fp16-mixed", "rtx-2080-ti", ("efficient",)),
        ("qwen3-4b", "fp16-mixed", "rtx-3060", ()),  # flash attention takes grouped heads
        ("qwen3-4b", "fp32", "h100-80gb", ("efficient",)),  # and no fp32
        ("qwen3-4b", "bf16-mixed", "t4", ()),  # the efficient kernel has no bf16 there
        ("gpt2", "fp16-mixed", "t4", ()),  # and is what sdpa takes where heads are not grouped
        ("gemma-2-2b", "fp16-mixed", "t4", ()),  # a model's own scores need eager attention
    ],
)
def test_a_kernel_is_searched_beside_where_the_usual_one_keeps_scores(
    model, precision, gpu, others
):
    job = make_job(model=load_model(model), precision=precision, seq_len=1024)
    device = load_cluster(gpu, memory_limit_bytes=None).device
    assert beside_usual(job, "sdpa", device) == others
    assert beside_usual(job, "eager", device) == ()


def test_what_was_typed_is_searched_alone(monkeypatch):
    asked = []

    def found(args, _budget):
        asked.append(args.attention)
        raise InterruptedError

    monkeypatch.setattr(searching, "_fused_or_not", found)
    ask = ["qwen3-4b", "--gpus", "t4", "--precision", "fp16-mixed"]
    assert searching._attentions_beside(parse("plan", ask)) == ("efficient",)
    assert searching._attentions_beside(parse("plan", [*ask, "--attention", "sdpa"])) == ()
    with pytest.raises(InterruptedError):
        searching.search(parse("plan", [*ask, "--attention", "sdpa"]), argparse.Namespace())
    assert asked == ["sdpa"]


def test_ways_out_on_other_cards_attend_as_is_usual_there():
    job = make_job(model=load_model("qwen3-4b"), precision="fp16-mixed", seq_len=1024)
    old, new = (load_cluster(name, memory_limit_bytes=None) for name in ("t4", "a10"))
    free = Search(old, Pins(), "efficient", "time", usual="sdpa")
    assert _attentions(free, job, old) == ("sdpa", "efficient")
    assert _attentions(free, job, new) == ("sdpa",)
    assert _attentions(free._replace(usual=None), job, new) == ("efficient",)
