"""A script that lacks a package, and builds its model by a configuration which it writes out."""

import json

import pytest

from brimful.cli.script_configs import least_words
from brimful.cli.script_settings import built_by, plan_of

pytestmark = pytest.mark.torch

SCRIPT = """
from absent_trainer import SFTConfig, SFTTrainer
from peft import LoraConfig
from transformers import AutoModelForCausalLM, LlamaConfig

WIDTH = 256
config = LlamaConfig(
    vocab_size=1024, hidden_size=WIDTH, intermediate_size=512, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, pad_token_id=None,
)
model = AutoModelForCausalLM.from_config(config)
SFTTrainer(
    model, args=SFTConfig(max_length=256, per_device_train_batch_size=2, bf16=True),
    peft_config=LoraConfig(r=8),
)
"""
SPEECH = """
import absent_trainer
import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

class Speech(absent_trainer.Module):
    def __init__(self):
        config = Wav2Vec2Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                intermediate_size=128, vocab_size=48)
        self.model = Wav2Vec2ForCTC(config)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
"""


def written(tmp_path, text):
    (path := tmp_path / "train.py").write_text(text)
    return path, built_by(str(path), [str(path)], tmp_path)


def test_a_configuration_of_literals_is_the_model_that_is_asked_about(tmp_path):
    path, built = written(tmp_path, SCRIPT)
    kept = json.loads((built.folder / "config.json").read_text())
    assert (kept["model_type"], kept["hidden_size"], kept["num_hidden_layers"]) == ("llama", 256, 4)
    assert plan_of(str(path), "l4") == []
    words = plan_of(str(path), "l4", built=built)
    assert words[:4] == ["plan", str(built.folder), "--gpus", "l4"]
    assert words[4:7] == ["--base", "same", "--use-peft"]  # which holds it in fp32
    for old in ("from_config(config", "vocab_size=1024"):
        path, built = written(tmp_path, SCRIPT.replace(old, f"{old}, dtype='bfloat16'"))
        assert "--base" not in plan_of(str(path), "l4", built=built)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("vocab_size=1024", "vocab_size=len(words)"),
        ("LlamaConfig(\n", "LlamaConfig(**sizes, \n"),
        ("model = ", "other = LlamaConfig(hidden_size=64)\nmodel = "),
        ("AutoModelForCausalLM.from_config(config)", "made(config)"),
        ("num_attention_heads=4", "num_attention_heads='four'"),
    ],
    ids=["computed", "elsewhere", "two", "built elsewhere", "refused"],
)
def test_what_is_not_written_out_is_not_guessed(tmp_path, old, new):
    assert old in SCRIPT
    assert written(tmp_path, SCRIPT.replace(old, new))[1] is None


def test_a_script_is_planned_by_the_configuration_that_it_writes_out(tmp_path, brimful):
    path, _ = written(tmp_path, SCRIPT)
    said = brimful("pretend", "--gpu", "l4", "--", path)
    assert said.code == 2
    assert "in Brimful's own loop, of the LlamaConfig that it writes out: brimful plan" in said.err
    assert "FITS      LoRA of LlamaConfig at 256 tokens on 1 x L4 24GB" in said.out


def test_of_a_model_that_is_not_planned_its_states_are_said(tmp_path, brimful):
    path, _ = written(tmp_path, SPEECH)
    said = brimful("pretend", "--gpu", "l4", "--", path)
    assert said.code == 2
    assert "as far as train.py is read: Wav2Vec2ForCTC of its Wav2Vec2Config has 4" in said.err
    assert "weights, gradients and the state of AdamW take" in said.err


def test_what_an_optimizer_keeps_is_tried_on_a_matrix(tmp_path):
    assert "AdamW(self.parameters())" in SPEECH
    kept = {
        "SGD(self.parameters())": 0,
        "SGD(momentum=0.9, params=self.parameters())": 4,
        "SGD(self.parameters(), 0.1, 0.9)": 4,
        "SGD(momentum=0, params=self.parameters())": 0,
        "SGD(self.parameters(), lr=args.lr)": 0,
        "SGD(self.parameters(), momentum=args.m)": None,
        "SGD(self.parameters(), **options)": None,
        "AdamW(self.parameters())": 8,
        "AdamW(self.parameters(), lr=args.lr, betas=args.betas)": 8,
        "AdamW(self.parameters(), capturable=True, fused=True)": 8,
        "AdamW(self.parameters(), amsgrad=args.amsgrad)": None,
        "Adafactor(self.parameters())": 0,  # rows and columns of a matrix alone
        "LBFGS(self.parameters())": None,
    }
    for call, num_bytes in kept.items():
        text = SPEECH.replace("AdamW(self.parameters())", call)
        _, built = written(tmp_path, text)
        assert built.state_bytes == num_bytes, call
        assert built.optimizer == call.partition("(")[0]


def test_a_state_that_is_unknown_is_said_to_come_on_top(tmp_path):
    call = "SGD(self.parameters(), momentum=args.m)"
    _, built = written(tmp_path, SPEECH.replace("AdamW(self.parameters())", call))
    words = least_words(built)
    assert "weights and gradients take" in words
    assert "the state of SGD, which is unknown, come on top" in words
