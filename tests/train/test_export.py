"""What a run hands over is loaded by others with the same results."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from brimful.build.assemble import build_program
from brimful.build.batch import count_targets
from brimful.build.step import train_step
from brimful.errors import RunError
from brimful.train.data.tokenizer import END_OF_TEXT, train_tokenizer
from brimful.train.export import export_model
from other_models import CNN, cut, make_other_job, make_other_model, ragged
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
NAMES = ["llama", "gpt2", "bert", "t5", "t5-untied", "switch"]
CLASSES = {
    "causal-lm": AutoModelForCausalLM,
    "sequence-classification": AutoModelForSequenceClassification,
    "seq2seq": AutoModelForSeq2SeqLM,
}


def job_for(name, **changes):
    decoder = name in {"llama", "gpt2"}
    return make_job(name, **changes) if decoder else make_other_job(name, **changes)


def trained(job):
    """A program after one step, so that its weights are nobody's initial ones."""
    attention = "eager" if job.model.model_type == "switch_transformers" else "sdpa"
    program = build_program(job, make_strategy(attention=attention), CPU)
    batch = ragged(job, step=0)
    if job.task == "causal-lm":
        batch = batch._replace(labels=batch.inputs)
    num_targets = count_targets([batch])
    train_step(program, cut(batch, 2), num_targets=num_targets, learning_rate=1e-2)
    return program


@pytest.fixture
def tokenizer_path(tmp_path):
    tokenizer = train_tokenizer(["the cat sat on the mat\n"], vocab_size=300, num_chars=23)
    path = tmp_path / "tokens" / "tokenizer.json"
    path.parent.mkdir()
    path.write_text(tokenizer.to_str())
    return path


@pytest.mark.parametrize("name", NAMES)
def test_from_pretrained_computes_the_same(tmp_path, name):
    job = job_for(name)
    program = trained(job)
    export_model(program.model, tokenizer_path=None, folder=tmp_path / "model")
    loaded = CLASSES[job.task].from_pretrained(tmp_path / "model", attn_implementation="eager")
    state = program.model.state_dict()
    assert loaded.state_dict().keys() == state.keys()
    assert all(torch.equal(loaded.state_dict()[key], value) for key, value in state.items())
    again = build_program(
        job_for(name, weights=str(tmp_path / "model")), program.strategy, CPU
    ).model
    assert all(torch.equal(again.state_dict()[key], value) for key, value in state.items())
    batch = ragged(job, step=1)
    inputs = {"input_ids": batch.inputs, "attention_mask": (batch.segments != 0).long()}
    if job.task == "seq2seq":
        inputs["decoder_input_ids"] = batch.inputs
    with torch.no_grad():
        plain = type(loaded).from_pretrained(tmp_path / "model").eval()
        logits = loaded.eval()(**inputs).logits
        torch.testing.assert_close(plain(**inputs).logits, logits, rtol=1e-4, atol=1e-5)
        if job.task == "causal-lm":
            ours = program.model.eval()(input_ids=batch.inputs).logits
            theirs = loaded(input_ids=batch.inputs).logits
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "field"), [("bert", "hidden_dropout_prob"), ("gpt2", "resid_pdrop")]
)
def test_what_training_switched_off_is_in_the_configuration_as_it_was(tmp_path, name, field):
    model = trained(job_for(name)).model
    assert getattr(model.config, field) == 0
    export_model(model, tokenizer_path=None, folder=tmp_path / "model")
    loaded = CLASSES[job_for(name).task].from_pretrained(tmp_path / "model")
    assert getattr(loaded.config, field) == 0.1
    assert getattr(model.config, field) == 0
    if name == "gpt2":
        assert loaded.config.use_cache


def test_a_tokenizer_of_ours_ends_texts(tmp_path, tokenizer_path):
    model = trained(make_job("llama")).model
    export_model(model, tokenizer_path=tokenizer_path, folder=tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert tokenizer.eos_token == END_OF_TEXT
    assert loaded.config.eos_token_id == tokenizer.eos_token_id
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id
    assert loaded.config.bos_token_id is None
    assert tokenizer.decode(tokenizer("the cat")["input_ids"]) == "the cat"


def test_an_encoder_decoder_keeps_what_it_begins_with(tmp_path, tokenizer_path):
    model = trained(make_other_job("t5")).model
    export_model(model, tokenizer_path=tokenizer_path, folder=tmp_path / "model")
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").config
    assert (config.decoder_start_token_id, config.pad_token_id) == (0, 0)


def test_a_tokenizer_that_was_given_is_handed_on(tmp_path, tokenizer_path):
    marks = {"eos_token": "<end>", "pad_token": "<pad>"}
    given = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_path), **marks)
    given.chat_template = "{{ messages }}"
    given.save_pretrained(tokenizer_path.parent)
    model = trained(make_job("llama")).model
    export_model(model, tokenizer_path=tokenizer_path, folder=tmp_path / "model")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert (loaded.eos_token, loaded.pad_token) == ("<end>", "<pad>")
    assert loaded.chat_template == "{{ messages }}"


def test_a_module_is_its_state_under_its_own_names(tmp_path):
    program = trained(make_other_job(CNN))
    export_model(program.model, tokenizer_path=None, folder=tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    state = program.model.model.state_dict()
    assert stored.keys() == state.keys()
    assert all(torch.equal(stored[key], value) for key, value in state.items())
    again = make_other_job(CNN, weights=str(tmp_path / "model"))
    assert torch.equal(
        build_program(again, make_strategy(), CPU).model.model[0].weight, state["0.weight"]
    )


def test_tied_weights_of_a_module_are_stored_once(tmp_path):
    name = "user_modules:own_weights"
    model = build_program(make_other_job(name), make_strategy(), CPU).model
    export_model(model, tokenizer_path=None, folder=tmp_path / "model")
    assert len(load_file(tmp_path / "model" / "model.safetensors")) == 2
    job = make_other_job(name, seed=9, weights=str(tmp_path / "model"))
    again = build_program(job, make_strategy(), CPU).model.model
    assert torch.equal(again[1].weight, model.model[0].weight)
    assert again[0].weight is again[1].weight


def test_added_tokens_and_classes_are_in_the_result(tmp_path):
    from brimful.models.resized import with_num_labels, with_vocab_size

    spec = with_num_labels(with_vocab_size(make_other_model("bert"), 99), 4)
    model = build_program(make_other_job("bert", model=spec), make_strategy(), CPU).model
    export_model(model, tokenizer_path=None, folder=tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["vocab_size"] == 99
    assert len(config["id2label"]) == 4


def test_a_model_that_was_there_survives_a_full_disk(tmp_path, monkeypatch):
    model = trained(make_job("llama")).model
    folder = tmp_path / "model"
    export_model(model, tokenizer_path=None, folder=folder)
    before = (folder / "model.safetensors").read_bytes()

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(model), "save_pretrained", full)
    with pytest.raises(RunError, match="no space left"):
        export_model(model, tokenizer_path=None, folder=folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
