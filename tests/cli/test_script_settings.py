"""A script that lacks a package says its job in its text, which is planned instead."""

import pytest

from brimful.cli.script_settings import plan_of

UNSLOTH = """
from absent_trainer import SFTConfig, SFTTrainer
from absent_loader import FastLanguageModel

LENGTH = 512
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="HuggingFaceTB/SmolLM2-135M", max_seq_length=256, load_in_4bit=True
)
model = FastLanguageModel.get_peft_model(model, r=8, lora_alpha=16, random_state=3407)
SFTTrainer(model, args=SFTConfig(
    per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=60, optim="adamw_8bit",
    num_train_epochs=LENGTH, output_dir="o",
))
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "unsloth.py"
    path.write_text(UNSLOTH)
    return path


def test_what_a_text_says_are_flags(script):
    words = plan_of(str(script), "2xl4")
    assert words[:4] == ["plan", "HuggingFaceTB/SmolLM2-135M", "--gpus", "2xl4"]
    said = dict(zip(words[5::2], words[6::2], strict=True))
    assert words[4] == "--use-peft"
    assert said["--load-in-4bit"] == "true"
    assert (said["--r"], said["--max-seq-length"]) == ("8", "256")
    assert "--output-dir" not in said
    assert "--num-train-epochs" not in said  # which is not written out


def test_a_text_that_names_no_model_says_nothing(tmp_path):
    (path := tmp_path / "x.py").write_text("import absent\nabsent.from_pretrained('nobody/none')\n")
    assert plan_of(str(path), "l4") == []
    assert plan_of(str(tmp_path / "gone.py"), "l4") == []


def test_calls_of_other_classes_and_numbers_that_mean_none_say_nothing(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("brimful.models.config.fetch_file", lambda *given: asked.append(given))
    (path := tmp_path / "y.py").write_text(
        "import absent\n"
        "absent.from_pretrained('somebody/unknown-1b')\n"
        "absent.from_pretrained('smollm2-135m')\n"
        "absent.ReplayConfig(r=3, max_seq_length=7)\n"
        "absent.TrainingArguments(max_steps=-1, learning_rate=1e-5)\n"
    )
    assert plan_of(str(path), "l4") == [
        "plan",
        "smollm2-135m",
        "--gpus",
        "l4",
        "--learning-rate",
        "1e-05",
    ]
    assert not asked


@pytest.mark.torch
def test_a_script_without_its_package_is_planned(script, brimful):
    said = brimful("pretend", "--gpu", "l4", "--", script)
    assert said.code == 2
    assert "No module named 'absent_trainer'" in said.err
    assert "planned instead, in Brimful's own loop: brimful plan HuggingFaceTB/SmolLM2" in said.err
    assert "FITS      QLoRA of smollm2-135m at 256 tokens on 1 x L4 24GB" in said.out
