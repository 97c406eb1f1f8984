"""What is taken into the form asks the question that was answered, pasted or not."""

import json

import pytest
from tests.web.test_answers import SMALL

from brimful.cli import flags, resolved
from brimful.cli.main import parse
from brimful.web import worker
from brimful.web.answers import answer, settings_of
from brimful.web.state import NO_FIELDS, STRATEGY, arguments, fields_of, read_state
from brimful.web.taken import taken
from brimful.web.words import words_of

PIPELINE = {
    "gpus": "8xh100-80gb", "what": "full", "pp": "2", "pp_schedule": "interleaved",
    "stages_per_device": "2", "global_batch": "32",
}  # fmt: skip
ASKED = [
    {},
    PIPELINE,
    {"gpus": "2xh100-80gb", "what": "full", "pp": "2", "stage_blocks": "15,17",
     "global_batch": "8"},
    {"gpus": "h100-80gb", "what": "full", "fused_kernels": "liger", "attention": "flash"},
    {"gpus": "8xh100-80gb", "what": "full", "zero": "1", "compile": "blocks"},
    {"gpus": "h100-80gb", "what": "dpo", "reference": "precomputed"},
    {"gpus": "h100-80gb", "what": "full", "zero": "3", "accumulate": "hold"},
    {"what": "qlora", "offload": "activations:4", "allocator": "expandable_segments:True"},
]  # fmt: skip


def asked_of(state):
    return resolved.asked(parse("estimate", arguments(state, "llama-3.1-8b")))


@pytest.mark.parametrize("query", ASKED)
def test_a_strategy_that_is_taken_is_asked_for_whatever_stood_in_the_form(query):
    asked = asked_of(read_state(query))
    fields = taken(asked)
    assert {*fields} == {*STRATEGY, "global_batch"}
    alike = {key: read_state(query).given[key] for key in ("gpus", "what")}
    for before in (
        query,
        alike,
        {**PIPELINE, **alike},
        {"fused_kernels": "liger", "tp": "2", **alike},
    ):
        state = read_state(before).changed(**fields)
        assert asked_of(state).strategy == asked.strategy
        assert asked_of(state).job.global_batch == asked.job.global_batch


def test_every_flag_of_a_strategy_is_a_field_but_for_those_that_are_named():
    assert {*STRATEGY} | NO_FIELDS == {*flags.STRATEGY}
    settings = settings_of(asked_of(read_state({})))
    assert {*STRATEGY} <= {*settings}
    assert settings["fused_kernels"] == "none"


def test_fields_are_the_question():
    for query in (*ASKED, {"config": json.dumps(SMALL), "hub": "1"}):
        state = read_state(query)
        again = read_state(fields_of(state))
        assert again.config == state.config
        assert {**again.given, "model": ""} == {**state.given, "model": ""}


def events(monkeypatch, tmp_path, query, **more):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = []
    worker._answer({"query": {"config": json.dumps(SMALL), **query}, **more}, said.append)
    return said


def test_offers_for_a_pasted_model_are_of_it(monkeypatch, tmp_path):
    from brimful.web import market

    names = dict(list(market.gpus().items())[:2])
    monkeypatch.setattr(market, "gpus", lambda: names)
    said = events(monkeypatch, tmp_path, {"what": "full", "seq_len": "512"}, do="market")
    offers = [event["offer"] for event in said if event["event"] == "row"]
    assert offers
    assert all(json.loads(offer["state"]["config"]) == SMALL for offer in offers)
    assert not any("model" in offer["state"] for offer in offers)


def test_a_plan_of_a_pasted_model_is_taken_with_it(monkeypatch, tmp_path):
    query = {"what": "full", "seq_len": "512", "gpus": "2xh100-80gb", **PIPELINE}
    query = {**query, "gpus": "2xh100-80gb", "global_batch": "8"}
    said = events(monkeypatch, tmp_path, query, do="verb", verb="plan")
    *_, plan = [event for event in said if event["event"] == "plan"]
    assert [event["event"] for event in said][-2:] == ["answer", "plan"]
    assert json.loads(plan["query"]["config"]) == SMALL
    assert answer(read_state(plan["query"]), "replayed", words_of("en"))["verdict"] == "FITS"


def test_a_plan_for_a_program_is_taken_with_the_recipe_that_it_trains_in(monkeypatch, tmp_path):
    query = {"model": "smollm2-135m", "config": "", "what": "full", "gpus": "h100-80gb",
             "program": "axolotl"}  # fmt: skip
    said = events(monkeypatch, tmp_path, query, do="verb", verb="plan")
    plans = [event["query"] for event in said if event["event"] == "plan"]
    assert len(plans) == 2  # before it is proven, and then
    assert all(plan["precision"] == "bf16" and plan["program"] == "axolotl" for plan in plans)
    again = read_state(plans[-1])
    assert "--for=axolotl" in arguments(again, "m", verb="plan")
    assert "--for=axolotl" in arguments(again, "m", verb="simulate")
    assert not any(word.startswith("--for") for word in arguments(again, "m"))


def test_gpus_that_write_text_are_offered_with_a_bound_of_their_price(monkeypatch, tmp_path):
    said = events(monkeypatch, tmp_path, {"what": "inference"}, do="market")
    offers = [event["offer"] for event in said if event["event"] == "row"]
    priced = [offer for offer in offers if offer["usd"]]
    assert len(priced) > 10
    for offer in priced[::9]:
        part = answer(read_state(offer["state"]), "tensors", words_of("en"))
        assert part["verdict"] == offer["verdict"] == "FITS"
        assert f"{offer['tokens_per_s']:,.0f}" in part["detail"]
