"""A first fit of each kind: the fewest on which a plain plan holds, a bound from above."""

from brimful.cost.estimate import estimate
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search.shop.first import first_fits
from brimful.search.shop.market import market
from brimful.search.shop.values import Limits, Request
from brimful.values.job import plain_job

from .test_market import RENTS

KINDS = ("rtx-3060", "rtx-4090", "h100-80gb")


def request_of(name, batch=4, **changes):
    job = plain_job(load_model(name), seq_len=1024, global_batch=batch, num_steps=1000)
    return Request(job, "sdpa", KINDS, RENTS, max_gpus=4, limits=Limits(), **changes)


def test_each_kind_has_one_that_holds_and_costs_no_less_than_its_best():
    request = request_of("tinyllama-1.1b", each=True)
    found = {each.kind: each for each in first_fits(request)}
    best = {each.kind: each for each in market(request).by_kind}
    assert set(found) == set(best) == set(KINDS)
    for kind, first in found.items():
        made = estimate(request.job, load_cluster(first.gpus, memory_limit_bytes=None),
                        first.strategy)  # fmt: skip
        assert made.fits
        assert made.predicted_step_s == first.predicted_step_s
        assert first.predicted_usd >= best[kind].predicted_usd


def test_what_holds_on_none_of_a_kind_is_not_told():
    found = [each.kind for each in first_fits(request_of("llama-3.1-8b"))]
    assert "rtx-3060" not in found
    assert "h100-80gb" in found
