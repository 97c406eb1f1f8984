"""A process that answers goes on after whatever it was asked."""

import json

import pytest

from brimful.web import worker


def answered(request):
    said = []
    worker._answer(request, said.append)
    return said


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_a_fault_of_ours_is_one_sentence_and_names_nothing_that_was_asked(monkeypatch, capsys):
    def fail(state, *_given):
        raise ValueError(state.given["model"])

    monkeypatch.setitem(worker._OPERATIONS, "ask", fail)
    (said,) = answered({"query": {"model": "a-secret"}, "do": "ask"})
    assert said["event"] == "refused"
    assert "\n" not in said["text"]
    logged = capsys.readouterr().err
    assert "ValueError" in logged
    assert "test_worker.py" in logged
    assert "a-secret" not in logged


@pytest.mark.parametrize("model_type", ["a" * 300, "a\0b", "\ud800", "a/b"])
def test_a_pasted_type_that_is_no_name_is_answered(model_type, capsys):
    query = {"config": json.dumps({"model_type": model_type, "hidden_size": 64})}
    (said,) = answered({"query": query, "do": "ask", "stage": "whole"})
    assert said["event"] == "answer"
    assert "Traceback" not in capsys.readouterr().err
