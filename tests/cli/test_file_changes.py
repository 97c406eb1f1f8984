"""Which keys of another program's file to change, held to the file with those keys."""

import json
import re
import tomllib

import pytest
import yaml

from brimful.cli import plan, searching
from brimful.errors import OutOfTimeError

BASE = {
    "axolotl.yaml": {
        "base_model": "llama-3.1-8b", "adapter": "lora", "lora_r": 16, "lora_alpha": 32,
        "lora_target_linear": True, "sequence_len": 4096, "micro_batch_size": 8,
        "gradient_accumulation_steps": 1, "bf16": True, "learning_rate": 1e-4,
        "gradient_checkpointing": False,
    },
    "llama-factory.yaml": {
        "model_name_or_path": "llama-3.1-8b", "stage": "sft", "finetuning_type": "lora",
        "lora_rank": 8, "lora_target": "all", "cutoff_len": 4096,
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "bf16": True,
        "learning_rate": 1e-4, "disable_gradient_checkpointing": True,
    },
    "trl.yaml": {
        "model_name_or_path": "llama-3.2-3b", "dataset_name": "x", "max_length": 2048, "bf16": True,
        "per_device_train_batch_size": 16, "learning_rate": 1e-5, "gradient_checkpointing": False,
    },
    "trainer.json": {
        "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "bf16": True,
        "gradient_checkpointing": True, "deepspeed": "zero.json", "learning_rate": 1e-5,
    },
    "zero.json": {
        "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3},
        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    },
    "deepspeed.json": {
        "bf16": {"enabled": True}, "zero_optimization": {"stage": 3},
        "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    },
}  # fmt: skip
LEAN = BASE["axolotl.yaml"] | {
    "micro_batch_size": 1, "gradient_accumulation_steps": 8, "gradient_checkpointing": True,
}  # fmt: skip
"""Little memory, and slow."""
TITAN = """
[model]
name = "llama3"
flavor = "8B"
[optimizer]
lr = 3e-4
[training]
local_batch_size = 4
seq_len = 8192
[activation_checkpoint]
mode = "none"
"""
CASES = (
    ("axolotl.yaml", "rtx-4090", {"micro_batch_size": 2, "gradient_checkpointing": True}),
    (
        "llama-factory.yaml",
        "2xrtx-4090",
        {"per_device_train_batch_size": 1, "disable_gradient_checkpointing": False},
    ),
    ("trl.yaml", "a100-80gb", {"gradient_checkpointing": True}),
    ("trainer.json", "4xrtx-4090", {"zero_optimization.offload_optimizer.device": "cpu"}),
    ("deepspeed.json", "4xa100-80gb", {"train_micro_batch_size_per_gpu": 2}),
    ("torchtitan.toml", "8xh100-80gb", {"training.local_batch_size": 1}),
)
LONG = {"axolotl.yaml"}
"""Below, its file with other keys is planned where it was tight, and its keys are read in words."""
NO_NAME = {"trainer.json": ("llama-3.1-8b",), "deepspeed.json": ("llama-3.1-8b", "--seq-len", 8192)}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in BASE.items():
        text = json.dumps(content) if name.endswith("json") else yaml.safe_dump(content)
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "torchtitan.toml").write_text(TITAN, "utf-8")
    return tmp_path


@pytest.fixture
def alone(monkeypatch):
    """Changes of the file alone are looked for: what else would fit is told after them."""
    monkeypatch.setattr(plan, "tell_ways_out", lambda *_args: ())


def planned(brimful, name, gpus, *also):
    named = NO_NAME.get(name, ())
    pinned = ("--no-proof", "--pp", 1)  # so that each search is short: no key says a pipeline
    return brimful("plan", *named, "--from", name, "--gpus", gpus, *pinned, *also)


def changed(path, keys):
    """Write a file with other keys."""
    for each in keys:
        place = path.parent / (each["file"] or path.name)
        content = _load(place)
        at = content
        *above, last = each["key"].split(".")
        for name in above:
            at = at.setdefault(name, {})
        at.pop(last, None)
        if each["new"] is not None:
            at[last] = each["new"]
        place.write_text(_text(place, content), "utf-8")


def _load(path):
    if path.suffix == ".toml":
        return tomllib.loads(path.read_text("utf-8"))
    text = path.read_text("utf-8")
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)


def _text(path, content):
    if path.suffix != ".toml":
        return json.dumps(content)
    lines = []
    for name, section in content.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    return "\n".join(lines)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("name", "gpus", "some"), [
    pytest.param(*case, id=case[0], marks=[pytest.mark.long] if case[0] in LONG else [])
    for case in CASES
])  # fmt: skip
def test_a_file_with_the_keys_that_are_named_holds(brimful, files, name, gpus, some):
    answer = json.loads(planned(brimful, name, gpus, "--json").out)
    assert answer["verdict"] == "NO"
    told = answer["file_changes"][0]
    keys = {each["key"]: each["new"] for each in told["keys"]}
    assert some == {key: keys.get(key) for key in some}
    changed(files / name, told["keys"])
    after = json.loads(planned(brimful, name, gpus, "--json").out)
    assert after["verdict"] == ("TIGHT" if told["is_tight"] else "FITS")
    assert after["best"]["step_s"] == pytest.approx(told["step_s"], rel=1e-6)
    if not told["price"]:
        assert after["job"] == answer["job"]


@pytest.mark.usefixtures("files")
def test_keys_stand_in_the_first_twelve_lines(brimful):
    said = planned(brimful, "axolotl.yaml", "rtx-4090")
    lines = said.out.splitlines()
    (at,) = (at for at, line in enumerate(lines) if line.startswith("change"))
    assert at + len(said.err.splitlines()) < 12
    assert "axolotl.yaml: micro_batch_size: 8 -> 2" in lines[at]
    assert "  axolotl.yaml: taken: method=lora" in said.out


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama-factory.yaml", {"enable_liger_kernel": True}),
        ("axolotl.yaml", {
            "plugins": ["own.Plugin", "axolotl.integrations.liger.LigerPlugin"],
            "liger_fused_linear_cross_entropy": True,
        }),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("alone")
def test_kernels_that_a_program_brings_along_change_nothing_that_is_learnt(
    brimful, files, name, keys
):
    lean = {
        "llama-factory.yaml": {
            "disable_gradient_checkpointing": False, "per_device_train_batch_size": 2,
        },
        "axolotl.yaml": {
            "gradient_checkpointing": True, "micro_batch_size": 2, "plugins": ["own.Plugin"],
        },
    }[name]  # fmt: skip
    (files / name).write_text(yaml.safe_dump(BASE[name] | lean))
    answer = json.loads(planned(brimful, name, "rtx-4090", "--json").out)
    assert answer["verdict"] == "NO"
    first, *_ = answer["file_changes"]
    assert not first["price"]
    assert not first["is_tight"]
    found = {each["key"]: each["new"] for each in first["keys"]}
    assert keys == {key: found.get(key) for key in keys}


def test_what_fits_is_told_what_would_be_faster(brimful, files):
    (files / "axolotl.yaml").write_text(yaml.safe_dump(LEAN), "utf-8")
    answer = json.loads(planned(brimful, "axolotl.yaml", "a100-80gb", "--json").out)
    assert answer["verdict"] == "FITS"
    (told,) = answer["file_changes"]
    assert told["times"] > 1.1
    assert {"gradient_checkpointing": False}.items() <= {
        each["key"]: each["new"] for each in told["keys"]
    }.items()


@pytest.mark.usefixtures("alone")
def test_what_is_tight_is_told_what_holds(brimful, files):
    (files / "axolotl.yaml").write_text(yaml.safe_dump(LEAN), "utf-8")
    answer = json.loads(planned(brimful, "axolotl.yaml", "rtx-4090", "--json").out)
    assert answer["verdict"] == "TIGHT"
    (told,) = answer["file_changes"]
    assert not told["is_tight"]
    assert not told["price"]  # Liger's kernels, before anything that changes what is learnt
    changed(files / "axolotl.yaml", told["keys"])
    after = json.loads(planned(brimful, "axolotl.yaml", "rtx-4090", "--json").out)
    assert after["verdict"] == "FITS"


@pytest.mark.usefixtures("alone")
def test_four_bits_are_spelled_as_the_program_spells_them(brimful, files):
    large = BASE["axolotl.yaml"] | {"base_model": "qwen2.5-14b", "micro_batch_size": 1}
    (files / "axolotl.yaml").write_text(yaml.safe_dump(large), "utf-8")
    answer = json.loads(planned(brimful, "axolotl.yaml", "rtx-4090", "--json").out)
    told = answer["file_changes"][0]
    keys = {each["key"]: each["new"] for each in told["keys"]}
    assert {"adapter": "qlora", "load_in_4bit": True}.items() <= keys.items()
    assert "changes what is learnt" in told["words"]
    assert re.search(r"would (fit|be tight), [\d.]+ GiB of [\d.]+ GiB, ", told["words"])


@pytest.mark.usefixtures("alone")
def test_beside_fewer_texts_at_once_stands_what_keeps_them(brimful, files):
    """TRL loads a frozen base in fp32, where nobody says otherwise."""
    wide = {
        "model_name_or_path": "llama-3.1-8b", "dataset_name": "x", "use_peft": True, "lora_r": 16,
        "lora_target_modules": "all-linear", "max_length": 4096, "bf16": True,
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 1e-4,
    }  # fmt: skip
    (files / "trl.yaml").write_text(yaml.safe_dump(wide), "utf-8")
    answer = json.loads(planned(brimful, "trl.yaml", "l40s", "--json").out)
    assert answer["verdict"] == "NO"
    fewer, kept = answer["file_changes"]
    assert (fewer["keeps_batch"], kept["keeps_batch"]) == (False, True)
    names = [{each["key"] for each in told["keys"]} for told in (fewer, kept)]
    assert "per_device_train_batch_size" in names[0]
    assert names[1] == {"dtype"}
    changed(files / "trl.yaml", kept["keys"])
    after = json.loads(planned(brimful, "trl.yaml", "l40s", "--json").out)
    assert after["verdict"] != "NO"


@pytest.mark.usefixtures("files", "alone")
def test_a_search_that_runs_out_of_time_finds_no_change(brimful, monkeypatch):
    """The answer was thrown away then."""
    searches = [searching.search]

    def search(*given):
        if not searches:
            raise OutOfTimeError("over")
        return searches.pop()(*given)

    monkeypatch.setattr(searching, "search", search)
    answer = json.loads(planned(brimful, "axolotl.yaml", "rtx-4090", "--json").out)
    assert answer["verdict"] == "NO"
    assert answer["file_changes"] == []


@pytest.mark.usefixtures("alone")
def test_values_of_a_file_stay_text(brimful, files):
    odd = BASE["axolotl.yaml"] | {"output_dir": "\x1b[2J[red]{evil}", "plugins": ["os.system('x')"]}
    (files / "axolotl.yaml").write_text(yaml.safe_dump(odd), "utf-8")
    said = planned(brimful, "axolotl.yaml", "rtx-4090")
    assert "\x1b" not in said.out + said.err
    assert "micro_batch_size: 8 -> 2" in said.out


@pytest.mark.parametrize("micro_batch", [1, 64])
def test_a_recipe_that_a_card_emulates_is_changed_first(
    brimful, tmp_path, monkeypatch, micro_batch
):
    """It had no hours, and a change that kept the recipe."""
    monkeypatch.chdir(tmp_path)
    content = {"bf16": True, "per_device_train_batch_size": micro_batch}
    (tmp_path / "args.json").write_text(json.dumps(content), "utf-8")
    asked = ("smollm2-135m", "--from", "args.json", "--gpus", "rtx-2080-ti", "--seq-len", 512)
    answer = json.loads(brimful("plan", *asked, "--no-proof", "--json").out)
    assert (answer["verdict"] == "FITS") == (micro_batch == 1)
    told = answer["file_changes"][0]
    keys = {each["key"]: each["new"] for each in told["keys"]}
    assert (keys["bf16"], keys["fp16"]) == (False, True)
    assert told["step_s"] > 0
    assert "bf16-mixed is emulated on this card" in told["price"]
