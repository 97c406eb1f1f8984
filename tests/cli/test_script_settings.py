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
        "--loss-chunks",
        "1",
        "--offload",
        "none",
    ]
    assert not asked


KEEPS = ("--offload", "none")
TRAINED = """
import argparse
from absent_trainer import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--liger", action="store_true")
cli = parser.parse_args()
SFTTrainer(model="smollm2-135m", args=SFTConfig(
    model_name_or_path="smollm2-135m", bf16=True, use_liger_kernel=cli.liger,
    model_init_kwargs={"dtype": DTYPE},
))
"""


@pytest.mark.parametrize(
    ("dtype", "gpus", "given", "also"),
    [
        ("'bfloat16'", "l4", [], ["--precision", "bf16", "--loss-chunks", "1", *KEEPS]),
        ("torch.bfloat16", "l4", ["--liger"], [
            "--precision", "bf16", "--fused-kernels", "liger", *KEEPS,
        ]),
        ("'float32'", "2xl4", ["--multi_gpu"], [
            "--loss-chunks", "1", *KEEPS, "--zero", "0", "--tp", "1", "--pp", "1",
        ]),
        ("'auto'", "2xl4", ["--use_fsdp"], ["--loss-chunks", "1"]),
    ],
)  # fmt: skip
def test_what_a_trainer_does_that_nobody_wrote_is_said_too(tmp_path, dtype, gpus, given, also):
    (path := tmp_path / "x.py").write_text(TRAINED.replace("DTYPE", dtype))
    words = plan_of(str(path), gpus, given)
    assert words[:4] == ["plan", "smollm2-135m", "--gpus", gpus]
    assert words[words.index("--bf16") + 2 :] == also


@pytest.mark.torch
def test_a_script_without_its_package_is_planned(script, brimful):
    said = brimful("pretend", "--gpu", "l4", "--", script)
    assert said.code == 2
    assert "No module named 'absent_trainer'" in said.err
    instead = "what is read in unsloth.py is planned instead, in Brimful's own loop: brimful plan"
    assert f"{instead} HuggingFaceTB/SmolLM2" in said.err
    assert "FITS      QLoRA of smollm2-135m at 256 tokens on 1 x L4 24GB" in said.out


LAUNCHED = """
import argparse
import absent_engine as deepspeed
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M")
parser.add_argument("--seq-len", type=int, default=512)
parser.add_argument("--max_steps", type=int, default=3)
parser.add_argument("--checkpointing", action="store_true")
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained(args.model)
if args.checkpointing:
    model.gradient_checkpointing_enable()
engine, *_ = deepspeed.initialize(args=args, model=model)
"""
SETTINGS = """{
  "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2}
}"""


@pytest.fixture
def launched(tmp_path):
    (tmp_path / "ds.json").write_text(SETTINGS)
    (path := tmp_path / "train.py").write_text(LAUNCHED)
    return path


def test_arguments_are_what_is_given_or_their_defaults(launched):
    words = plan_of(str(launched), "8xl4", [str(launched)])
    assert words == ["plan", "HuggingFaceTB/SmolLM2-135M", "--gpus", "8xl4", "--seq-len", "512"]
    given = [str(launched), "--seq_len", "256", "--model=smollm2-360m", "--checkpointing"]
    words = plan_of(str(launched), "8xl4", [*given, "--max_steps", "9"])
    assert words[:4] == ["plan", "smollm2-360m", "--gpus", "8xl4"]
    assert words[4:] == ["--gradient-checkpointing", "--seq-len", "256", "--max-steps", "9"]


@pytest.mark.parametrize(
    "given",
    [
        ["deepspeed", "--num_gpus", "8", "train.py", "--deepspeed_config", "ds.json"],
        ["accelerate", "launch", "--config_file=ds.json", "train.py"],
        ["torchrun", "train.py", "--deepspeed", "ds.json"],
    ],
)
def test_the_file_of_settings_is_found_beside_the_script(launched, given):
    words = plan_of(str(launched), "8xl4", given)
    assert words[words.index("--from") + 1] == str(launched.parent / "ds.json")


def test_a_file_that_the_text_names_is_found_and_one_that_is_not_there_is_left(launched):
    text = LAUNCHED.replace("model=model)", 'model=model, config="ds.json")')
    launched.write_text(text)
    assert "--from" in plan_of(str(launched), "l4")
    launched.write_text(text.replace("ds.json", "gone.json"))
    assert "--from" not in plan_of(str(launched), "l4")


@pytest.mark.torch
def test_a_launch_without_its_engine_is_planned_by_script_and_settings(launched, brimful):
    settings = str(launched.parent / "ds.json")
    launch = ("deepspeed", "--num_gpus", "4", launched, "--deepspeed_config", settings)
    said = brimful("pretend", "--gpu", "l4", "--", *launch)
    assert said.code == 2
    assert f"what is read in train.py and {settings} is planned instead" in said.err
    assert "SmolLM2-135M --gpus 4xl4 --from" in said.err
    told = " ".join(said.out.split())
    assert "full training of smollm2-135m at 512 tokens on 4 x L4" in told
    assert "ZeRO-2 over 4 GPUs" in told


@pytest.mark.parametrize(
    ("switch", "limit"), [("True", "50%"), ("not args.no_vllm", "50%"), ("args.no_vllm", "")]
)
def test_what_a_trainer_learns_and_what_a_server_leaves_of_a_card(tmp_path, switch, limit):
    (path := tmp_path / "grpo.py").write_text(
        "import argparse, absent\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--share', type=float, default=0.5)\n"
        "parser.add_argument('--no-vllm', action='store_true')\n"
        "args = parser.parse_args()\n"
        "model = absent.FastLanguageModel.from_pretrained(\n"
        "    model_name='smollm2-135m', gpu_memory_utilization=args.share,\n"
        f"    fast_inference={switch})\n"
        "absent.GRPOTrainer(model, args=absent.GRPOConfig(per_device_train_batch_size=4))\n"
    )
    words = plan_of(str(path), "l4")
    assert words[words.index("--task") + 1] == "grpo"
    assert (words[words.index("--memory-limit") + 1] if "--memory-limit" in words else "") == limit


@pytest.mark.parametrize(
    ("given", "limit"),
    [("use_vllm=True", "70%"), ("use_vllm=True, vllm_mode='server'", ""), ("", "")],
)
def test_a_server_of_its_own_leaves_each_card_whole(tmp_path, given, limit):
    (path := tmp_path / "grpo.py").write_text(
        "import absent\nabsent.GRPOTrainer('smollm2-135m')\n"
        "model = absent.AutoModelForCausalLM.from_pretrained('smollm2-135m')\n"
        f"absent.GRPOConfig(per_device_train_batch_size=4, {given})\n"
    )
    words = plan_of(str(path), "l4")
    assert (words[words.index("--memory-limit") + 1] if "--memory-limit" in words else "") == limit


LOOP = """
import lightning as L
SIZE = 32
val = DataLoader(rows, batch_size=64)
train = DataLoader(rows, SIZE, shuffle=True)
batch = tokenizer(texts, truncation=True, max_length=384)
model = AutoModel.from_pretrained("smollm2-135m")
L.Trainer(max_steps=9, precision="16-mixed", accumulate_grad_batches=2).fit(model, train, val)
"""


def test_a_loop_of_ones_own_says_batches_lengths_and_precision(tmp_path):
    (path := tmp_path / "loop.py").write_text(LOOP)
    _, _, _, _, *words = plan_of(str(path), "l4")
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        "--precision": "fp16-mixed",
        "--max-steps": "9",
        "--accumulate-grad-batches": "2",
        "--seq-len": "384",
        "--micro-batch": "32",
        "--offload": "none",
    }


def test_rows_that_a_model_writes_are_as_long_as_its_trainer_says(tmp_path):
    """Of 512 tokens that are given, by default, and 256 that are written, logits of a third."""
    (path := tmp_path / "grpo.py").write_text(
        "import absent\n"
        "args = absent.GRPOConfig(per_device_train_batch_size=4, max_completion_length=256)\n"
        "absent.GRPOTrainer(model='smollm2-135m', args=args)\n"
    )
    assert plan_of(str(path), "l4") == [
        *("plan", "smollm2-135m", "--gpus", "l4", "--per-device-train-batch-size", "4"),
        *("--task", "grpo", "--seq-len", "768", "--loss-chunks", "3", *KEEPS),
    ]
