"""Models by every name that people call them."""

import json
import subprocess
import sys

import pytest

from brimful.errors import InputError, ModelConfigError, UnknownNameError, UnsupportedError
from brimful.models.config import (
    check_buildable,
    check_model,
    default_task,
    has_parameter_count,
    load_model,
    parameter_count,
    read_config,
)
from brimful.models.fields import MAX_POSITIONS
from brimful.models.hub import fetch_file, fetch_folder, is_hub_id
from brimful.models.kernels import attentions_of
from brimful.models.module import is_factory, read_factory
from brimful.models.resized import with_num_labels, with_vocab_size
from brimful.values.job import plain_job
from other_models import CONFIGS, make_other_model
from samples import TINY_LLAMA, make_model

MORE = {
    "bert-types": {**CONFIGS["bert"], "type_vocab_size": 3, "num_hidden_layers": 1},
    "bert-defaults": {"model_type": "bert"},
    "t5-defaults": {"model_type": "t5"},
    "t5-aliases": {
        "model_type": "t5",
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
    },
    "t5-gated": {**CONFIGS["t5"], "feed_forward_proj": "gated-gelu"},
    "switch-defaults": {"model_type": "switch_transformers"},
    "switch-all": {
        **CONFIGS["switch"],
        "num_sparse_encoder_layers": 2,
        "num_sparse_decoder_layers": 2,
        "router_bias": True,
    },
    "switch-none": {
        **CONFIGS["switch"],
        "num_layers": 4,
        "num_sparse_encoder_layers": 0,
        "num_sparse_decoder_layers": 0,
    },
    "switch-odd": {**CONFIGS["switch"], "num_layers": 7, "num_sparse_encoder_layers": 3},
}


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name in (*CONFIGS, *MORE) if name != "bart"])
def test_closed_counts_are_those_of_the_module(name):
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

    spec = read_config(name, {**CONFIGS, **MORE}[name])
    auto = (
        AutoModelForSequenceClassification if spec.model_type == "bert" else AutoModelForSeq2SeqLM
    )
    config = AutoConfig.for_model(spec.model_type, **spec.hf_config)
    with torch.device("meta"):
        model = auto.from_config(config)
    untied = (
        0 if spec.tied_embeddings or spec.model_type == "bert" else model.lm_head.weight.numel()
    )
    counted = sum(p.numel() for p in model.parameters()) + untied
    assert parameter_count(spec).total == counted
    assert check_buildable(spec) is spec


@pytest.mark.parametrize("name", [*CONFIGS, "user_modules:cnn"])
def test_a_description_is_what_its_configuration_says(name):
    spec = make_other_model(name)
    assert check_model(spec) == spec
    assert json.loads(json.dumps(spec.hf_config)) == spec.hf_config


def test_seq2seq_counts_the_blocks_of_both_stacks_and_has_no_longest_text():
    spec = make_other_model("t5")
    assert (spec.num_layers, spec.max_seq_len, spec.head_dim) == (5, MAX_POSITIONS, 8)


def test_a_factory_is_described_without_being_imported():
    spec = load_model("no_such_package.inner:Class.build")
    assert spec == read_factory("no_such_package.inner:Class.build")
    assert (spec.model_type, spec.hidden_size, spec.max_seq_len) == ("module", 0, 1)
    assert check_buildable(spec) is spec


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a:b", True),
        ("a.b:c.d", True),
        ("a", False),
        ("a/b:c", False),
        ("1:a", False),
        ("a:", False),
    ],
)
def test_factories_are_told_by_their_spelling(name, expected):
    assert is_factory(name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/name", True),
        ("Qwen/Qwen3-0.6B", True),
        ("name", False),
        ("a/b/c", False),
        ("../b", False),
        ("/a/b", False),
        ("a/b.json", False),
        ("a /b", False),
    ],
)
def test_hub_ids_are_told_by_their_spelling(name, expected):
    assert is_hub_id(name) is expected


@pytest.mark.parametrize(
    ("name", "task"),
    [("bert", "sequence-classification"), ("t5", "seq2seq"), ("switch", "seq2seq")],
)
def test_every_model_has_a_usual_task(name, task):
    assert default_task(make_other_model(name)) == task
    assert default_task(make_model("llama")) == "causal-lm"
    assert default_task(read_factory("a:b")) == "module"


def test_attention_that_a_model_has_no_way_for_is_not_listed():
    jobs = {
        name: plain_job(make_other_model(name), task=default_task(make_other_model(name)))
        for name in ("bert", "t5", "switch")
    }
    assert attentions_of(jobs["switch"]) == ("eager",)
    assert attentions_of(jobs["t5"]) == ("eager", "sdpa")
    assert "flash" not in attentions_of(jobs["bert"])
    assert "varlen" in attentions_of(plain_job(make_model("llama")))


@pytest.mark.torch
@pytest.mark.parametrize("model_type", ["gemma", "starcoder2", "smollm3", "roberta", "distilbert"])
def test_other_architectures_are_read_by_their_usual_names(model_type):
    from transformers import AutoConfig

    spec = read_config(model_type, {"model_type": model_type})
    made = AutoConfig.for_model(model_type)
    assert spec.hidden_size == made.hidden_size
    assert spec.num_layers == made.num_hidden_layers
    assert spec.vocab_size == made.vocab_size
    assert check_model(spec) == spec
    assert not has_parameter_count(spec)
    with pytest.raises(UnsupportedError, match="no formula"):
        parameter_count(spec)
    encoder = model_type in {"roberta", "distilbert"}
    assert default_task(spec) == ("sequence-classification" if encoder else "causal-lm")


@pytest.mark.torch
def test_positions_that_begin_after_the_padding_are_fewer():
    spec = read_config("r", {"model_type": "roberta", "max_position_embeddings": 514})
    assert spec.max_seq_len == 512


@pytest.mark.torch
def test_positions_that_nobody_counts_have_no_end_and_what_does_not_attend_has_one_head():
    bloom, mamba, led = (read_config("m", {"model_type": of}) for of in ("bloom", "mamba", "led"))
    assert bloom.max_seq_len == mamba.max_seq_len == MAX_POSITIONS
    assert (bloom.num_heads, mamba.num_heads, mamba.head_dim) == (8, 1, mamba.hidden_size)
    assert led.max_seq_len == 1024  # of the stack that has fewer


@pytest.mark.torch
@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ({"model_type": "perceiver"}, ("perceiver", "num_hidden_layers")),
        ({"model_type": "lama"}, ("'lama'", "did you mean llama?")),
        ({"model_type": "vit"}, ("'vit'", "llama, mistral", "t5")),
        ({"model_type": 3}, ("3",)),
        ({"model_type": "gemma", "rope_parameters": "fast"}, ("gemma", "mend")),
        ({**TINY_LLAMA, "model_type": "bert", "num_attention_heads": 5}, ("5", "32")),
        ({**CONFIGS["t5"], "d_model": 0}, ("d_model=0", "1 to")),
        ({**CONFIGS["switch"], "router_bias": 1}, ("router_bias=1", "true or false")),
    ],
)
def test_bad_configurations_are_one_sentence(config, facts):
    with pytest.raises(ModelConfigError) as raised:
        read_config("gemma" if "rope_parameters" in config else "x", config)
    assert all(fact in str(raised.value) for fact in facts)
    assert "\n" not in str(raised.value)


def test_known_architectures_are_read_without_torch():
    code = (
        "import sys; from brimful.models.config import load_model, read_config; "
        "load_model('a.b:c'); load_model('gpt2'); "
        "[read_config('x', {'model_type': t}) for t in ('bert', 't5', 'switch_transformers')]; "
        "print([m for m in ('torch', 'transformers', 'huggingface_hub') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_added_tokens_raise_the_vocabulary_and_never_lower_it():
    spec = make_model("llama")
    assert with_vocab_size(spec, 97) is spec
    wider = with_vocab_size(spec, 120)
    assert (wider.vocab_size, wider.hf_config["vocab_size"]) == (120, 120)
    assert check_model(wider) == wider
    assert with_vocab_size(read_factory("a:b"), 120).vocab_size == 0


def test_classes_are_said_by_the_data():
    spec = with_num_labels(make_other_model("bert"), 7)
    assert check_model(spec) == spec
    assert parameter_count(spec).head == 7 * 33
    with pytest.raises(InputError, match="num_labels=1"):
        with_num_labels(spec, 1)


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A hub cache with one model, and no way to the hub."""
    commit = "0" * 40
    root = tmp_path / "models--org--tiny"
    folder = root / "snapshots" / commit
    folder.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit)
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA))
    (folder / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return folder


def test_a_hub_model_is_found_in_the_cache_without_the_network(cached):
    spec = load_model("org/tiny")
    assert (spec.name, spec.hidden_size) == ("org/tiny", 32)
    assert fetch_file("org/tiny", "config.json") == cached / "config.json"
    assert fetch_folder("org/tiny", ["*.safetensors"]) == cached


@pytest.mark.usefixtures("cached")
def test_a_hub_model_that_nobody_fetched_is_one_sentence():
    with pytest.raises(UnknownNameError) as raised:
        load_model("org/gone")
    assert "HF_HUB_OFFLINE=0" in str(raised.value)
    assert "hf download org/gone" in str(raised.value)
    assert "\n" not in str(raised.value)


def _answer(kind):
    import httpx

    request = httpx.Request("GET", "https://huggingface.co")
    return kind("Line one.\nLine two.", response=httpx.Response(403, request=request))


@pytest.mark.parametrize(
    ("kind", "fact"),
    [
        ("GatedRepoError", "is gated; accept its terms at https://huggingface.co/org/name"),
        ("RepositoryNotFoundError", "the hub has no model 'org/name'"),
        ("RemoteEntryNotFoundError", "has no config.json on the hub"),
        ("HfHubHTTPError", "could not be fetched (Line one.)"),
    ],
)
def test_what_the_hub_answers_is_said_in_one_sentence(monkeypatch, kind, fact):
    import huggingface_hub
    from huggingface_hub import errors

    def refuse(*_args, **_kwargs):
        raise _answer(getattr(errors, kind))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(InputError) as raised:
        load_model("org/name")
    assert fact in str(raised.value)
    assert "\n" not in str(raised.value)
