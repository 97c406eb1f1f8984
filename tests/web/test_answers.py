"""The page says what the terminal says, to the letter; an answer in stages gets no worse."""

import html
import json
import re

import pytest

from brimful import api
from brimful.web.answers import answer
from brimful.web.models import find_model
from brimful.web.page import main_page
from brimful.web.state import command, read_state
from brimful.web.words import words_of

EN = words_of("en")
SMALL = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("query", "flags"),
    [
        ({"gpus": "h100-80gb"}, {"gpus": "h100-80gb", "method": "lora"}),
        ({}, {"gpus": "rtx-4090", "method": "lora"}),
        ({"what": "full", "gpus": "8xh100-80gb", "zero": "2"},
         {"gpus": "8xh100-80gb", "method": "full", "zero": 2}),
    ],
)  # fmt: skip
def test_the_page_says_the_terminals_lines(query, flags):
    part = answer(read_state(query), "whole", EN)
    said = api.estimate("llama-3.1-8b", **flags)
    assert part["verdict"] == str(said).split()[0]
    for key in ("predicted_peak_allocated_bytes", "predicted_step_s"):
        assert part["values"][key] == said.values[key]
    header, _, _ = part["html"].partition("</header>")
    facts = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", header)
    shown = [(label, html.unescape(re.sub("<[^>]+>", "", fact))) for label, fact in facts]
    title, *lines = str(said).splitlines()
    told: list[list[str]] = []
    for line in lines:
        if line[:10].strip():
            told.append([line[:10].strip(), line[10:].strip()])
        else:
            told[-1][1] += f" {line.strip()}"
    assert html.unescape(re.search("<h1>(.*?)</h1>", header)[1]) == title.split(maxsplit=1)[1]
    (_, memory), *told = told
    assert memory.strip("█░▶ ") in html.unescape(header)
    assert told.pop()[0] == "next"  # what comes next is a button there
    assert told
    following = iter(shown)  # in the same order; a terminal cuts what has no room
    for label, fact in told:
        assert any(label == name and text.startswith(fact) for name, text in following), fact


def test_the_stages_of_an_answer_agree_on_what_each_knows():
    parts = {stage: answer(read_state({}), stage, EN) for stage in ("tensors", "replayed", "whole")}
    peaks = {part["values"]["predicted_peak_allocated_bytes"] for part in parts.values()}
    assert len(peaks) == 1
    assert "tensors only" not in parts["replayed"]["html"]
    assert parts["replayed"]["verdict"] == parts["whole"]["verdict"] == "NO"


def test_what_would_fit_can_be_taken_and_fits():
    state = read_state({})
    fix = answer(state, "whole", EN)["fix"]
    taken = answer(state.changed(**fix), "replayed", EN)
    assert taken["verdict"] == "FITS"


def test_a_refusal_is_the_command_lines_sentence():
    state = read_state({"model": "lama-3.1-8x"})
    part = answer(state, "replayed", EN)
    assert "unknown model 'lama-3.1-8x'" in part["refused"]
    part = answer(read_state({"tp": "3", "gpus": "3xh100-80gb", "what": "full"}), "replayed", EN)
    assert "tp=3 does not divide" in part["refused"]


def test_what_is_refused_is_answered_by_the_nearest_question_in_the_end():
    state = read_state({"tp": "3", "gpus": "3xh100-80gb", "what": "full"})
    part = answer(state, "whole", EN)
    assert "tp=3 does not divide" in part["refused"]
    assert part["nearest"].get("html") or part["nearest"]["text"]


@pytest.mark.few(only=["query1---fused-kernels=none", "query2---global-batch=6"])
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"seq_len": "400k"}, "--max-positions=409600"),
        ({"gpus": "rtx-3090", "what": "full", "precision": "fp16-mixed",
          "fused_kernels": "liger", "loss_chunks": "4"}, "--fused-kernels=none"),
        ({"gpus": "3xh100-80gb", "global_batch": "4"}, "--global-batch=6"),
    ],
)  # fmt: skip
def test_the_command_of_the_nearest_question_is_its_own(query, said):
    from brimful.cli import resolved
    from brimful.cli.main import parse
    from brimful.cost.estimate import estimate

    part = answer(read_state(query), "whole", EN)
    near = part["nearest"]
    assert said in near["command"].split()
    assert part["command"] == command(read_state(query)) != near["command"]
    (shown,) = re.findall(r"<header>.*<pre[^>]*>(.*?)</pre>.*</header>", near["html"])
    assert html.unescape(shown) == f"$ {near['command']}"
    made = estimate(*resolved.asked(parse("estimate", near["command"].split()[2:])))
    values = near["values"]
    assert made.predicted_peak_allocated_bytes == values["predicted_peak_allocated_bytes"]
    assert any(note.startswith("instead the same with") for note in near["notes"])


def test_names_of_other_spellings_are_said():
    part = answer(read_state({"model": "Llama 3.1 8B Instruct", "gpus": "H100"}), "tensors", EN)
    assert any("h100-80gb is taken for 'H100'" in note for note in part["notes"])
    assert part["verdict"] == "FITS"


def test_a_pasted_configuration_is_answered():
    part = answer(read_state({"config": json.dumps(SMALL), "what": "full"}), "replayed", EN)
    assert part["verdict"] == "FITS"
    assert "pasted-" in part["html"]


def test_a_pasted_name_is_text():
    config = {**SMALL, "model_type": '<script>alert("x")</script>'}
    part = answer(read_state({"config": json.dumps(config)}), "replayed", EN)
    assert config["model_type"] in part["untold"]  # as it is, and escaped where it is drawn
    page = main_page(read_state({}), EN, part, refused="", kept="")
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in page
    assert "<script>alert" not in page


@pytest.mark.parametrize("model_type", ["a" * 300, "a\0b", "\ud800", "a/b", "../../x", "", "."])
def test_a_pasted_type_is_no_part_of_a_path(model_type):
    config = json.dumps({**SMALL, "model_type": model_type})
    part = answer(read_state({"config": config}), "whole", EN)
    assert "transformers" in (part.get("untold") or part["refused"])


def test_no_hub_is_asked_unless_it_is_allowed(monkeypatch):
    asked = []
    monkeypatch.setattr("brimful.models.config.fetch_file", lambda *names: asked.append(names))
    part = answer(read_state({"model": "nobody/nothing-of-this-name"}), "replayed", EN)
    assert "allow this page to ask the hub" in part["refused"]
    assert not asked
    assert find_model(read_state({"model": "meta-llama/Llama-3.1-8B"})).argument == "llama-3.1-8b"


def test_inference_is_answered():
    part = answer(read_state({"what": "inference", "gpus": "h100-80gb"}), "replayed", EN)
    assert part["verdict"] == "FITS"


def test_labels_are_translated_and_numbers_are_the_same():
    english, chinese = (
        answer(read_state({"gpus": "h100-80gb"}), "tensors", words_of(language))
        for language in ("en", "zh")
    )
    assert english["values"] == chinese["values"]
    assert "设置" in chinese["html"]
    assert "设置" not in english["html"]


def test_nothing_is_left_where_the_process_is(tmp_path):
    answer(read_state({"gpus": "h100-80gb"}), "whole", EN)
    assert not list(tmp_path.iterdir())


def test_the_command_is_one_that_runs():
    from brimful.cli import resolved
    from brimful.cli.main import parse

    state = read_state({"what": "qlora", "seq_len": "8k", "loss_chunks": "4"})
    words = command(state).split()[2:]
    asked = resolved.asked(parse("estimate", words))
    from brimful.cost.estimate import estimate

    made = estimate(*asked)
    assert (
        made.predicted_peak_allocated_bytes
        == (answer(state, "tensors", EN)["values"]["predicted_peak_allocated_bytes"])
    )
