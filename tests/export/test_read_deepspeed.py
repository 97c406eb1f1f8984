"""DeepSpeed's JSON read back: what is taken, left, not read, refused."""

import json
import re

import msgspec
import pytest
import yaml

from brimful.cli.main import main
from brimful.errors import InputError, UnsupportedError
from brimful.export import deepspeed
from brimful.export.leaves import without
from brimful.export.read_deepspeed import OFFLOADS_BOTH, read_deepspeed
from brimful.export.read_source import read_source
from brimful.models.config import load_model, parameter_count
from brimful.techniques.deepspeed_settings import parse_engine_settings
from brimful.train.schedule import FINAL_FRACTION
from brimful.units import format_bytes

PLAIN = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
}

EACH = "reduce-each"


def read(tmp_path, num_devices=4, **content):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(content))
    return read_deepspeed(path, num_devices=num_devices, num_layers=8)


def flags_of(found):
    return {taken.flag: taken.value for taken in found.taken}


def test_what_it_says_becomes_flags(tmp_path):
    found = flags_of(read(tmp_path, **PLAIN, gradient_clipping=0.5))
    assert found["global_batch"] == 16
    assert (found["micro_batch"], found["zero"], found["dp_replicate"]) == (2, 2, 1)
    assert (found["precision"], found["clip"]) == ("bf16-master", 0.5)


@pytest.mark.parametrize(("stage", "kept"), [(0, None), (1, None), (2, EACH), (3, EACH)])
def test_stages_that_shard_gradients_reduce_those_of_every_micro_batch(tmp_path, stage, kept):
    found = flags_of(read(tmp_path, zero_optimization={"stage": stage}))
    assert found.get("accumulate") == kept


def test_a_missing_batch_is_the_product(tmp_path):
    sizes = {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 5}
    assert flags_of(read(tmp_path, **sizes))["global_batch"] == 60


def test_auto_is_left_and_the_unknown_is_named(tmp_path):
    content = {**PLAIN, "train_batch_size": "auto", "gradient_clipping": "auto", "odd": {"key": 7}}
    found = read(tmp_path, **content)
    assert {"train_batch_size", "gradient_clipping"} <= set(found.left)
    assert found.unread == ("odd.key=7",)
    assert "clip" not in flags_of(found)


LIVE, REUSED = "stage3_max_live_parameters:1000000000", "stage3_max_reuse_distance:1000000000"
THRESHOLD = "stage3_param_persistence_threshold:100000"


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ({"stage": 0, "overlap_comm": True}, None),
        ({"stage": 1}, "overlap_comm:false,reduce_bucket_size:500000000"),
        ({"stage": 2, "overlap_comm": True, "reduce_bucket_size": 2e8},
         "overlap_comm:true,reduce_bucket_size:200000000"),
        ({"stage": 2, "overlap_comm": False, "reduce_bucket_size": "auto"}, "overlap_comm:false"),
        ({"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
         f"overlap_comm:true,sub_group_size:1000000000,{THRESHOLD},{LIVE},{REUSED}"),
        ({"stage": 3, "overlap_comm": False, "reduce_bucket_size": "auto", "sub_group_size": 0,
          "prefetch_bucket_size": 7, "max_live_parameters": 0, "max_reuse_distance": 0},
         ("overlap_comm:false,sub_group_size:0,stage3_prefetch_bucket_size:7,"
          f"{THRESHOLD},stage3_max_live_parameters:0,stage3_max_reuse_distance:0")),
    ],
)  # fmt: skip
def test_how_its_engine_shards_is_taken_with_its_own_defaults(tmp_path, section, settings):
    found = read(tmp_path, zero_optimization={**section, "round_robin_gradients": True})
    assert found.engine_settings == settings
    assert not any("bucket" in each or "overlap" in each for each in found.unread if settings)
    if settings is not None:
        parse_engine_settings(settings)


def test_every_leaf_ends_somewhere(tmp_path):
    """Nothing is dropped: keys are taken, left or not read."""
    content = {"fp16": {"enabled": True, "initial_scale_power": 12, "hysteresis": 2}}
    found = read(tmp_path, **content)
    assert flags_of(found)["initial_scale"] == 2.0**12
    assert flags_of(found)["growth_interval"] == 1000
    assert found.unread == ("fp16.hysteresis=2",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({**PLAIN, "train_batch_size": 15, "gradient_accumulation_steps": 2}, "=15 is not 2"),
        ({"zero_optimization": {"stage": 4}}, "stage is 4"),
        ({"zero_optimization": {"stage": "two"}}, "a whole number"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "both enabled"),
        ({"train_micro_batch_size_per_gpu": 0}, "give 1 or more"),
    ],
)
def test_what_does_not_go_together_is_an_error(tmp_path, content, said):
    with pytest.raises(InputError, match=said):
        read(tmp_path, **content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"optimizer": {"type": "Newest"}}, "type=Newest"),
        ({"fp16": {"enabled": True, "loss_scale": 128}}, "loss_scale=128"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "tape"}}}, "tape"),
        ({"scheduler": {"type": "OneCycle"}}, "OneCycle"),
    ],
)
def test_what_is_not_planned_is_refused(tmp_path, content, said):
    with pytest.raises(UnsupportedError, match=said):
        read(tmp_path, **content)


def test_what_is_kept_on_nvme_is_planned_as_if_the_host_kept_it(tmp_path):
    key = "zero_optimization.offload_optimizer.device"
    found = read(tmp_path, zero_optimization={"stage": 3, "offload_optimizer": {"device": "nvme"}})
    assert {each.flag: each.value for each in found.taken}["offload"] == "optimizer"
    assert found.on_disk == ((key, "optimizer"),)


def test_parameters_that_alone_go_to_the_host_are_said_to_be_planned_otherwise(tmp_path):
    away = {"device": "cpu"}
    alone = read(tmp_path, zero_optimization={"stage": 3, "offload_param": away})
    assert alone.stand_ins == (OFFLOADS_BOTH,)
    assert any(OFFLOADS_BOTH in note for note in alone.notes)
    stage = {"stage": 3, "offload_param": away, "offload_optimizer": away}
    both = read(tmp_path, zero_optimization=stage)
    assert not both.stand_ins
    assert not any(OFFLOADS_BOTH in note for note in both.notes)


@pytest.mark.parametrize(("own", "expected"), [({}, "none"), ({"device": "cpu"}, "optimizer")])
def test_what_it_does_not_send_to_the_host_stays(tmp_path, own, expected):
    found = read(tmp_path, zero_optimization={"stage": 2, "offload_optimizer": own})
    assert {each.flag: each.value for each in found.taken}["offload"] == expected


def test_typed_flags_win_and_take_their_dependents_along(tmp_path):
    found = read(tmp_path, fp16={"enabled": True}, zero_optimization={"stage": 1})
    kept, replaced = without(found, {"precision": "bf16-mixed", "zero": 3})
    assert {"initial_scale", "precision", "zero"}.isdisjoint(each.flag for each in kept)
    assert any("--zero stands in for zero_optimization.stage=1" in line for line in replaced)


def test_one_cosine():
    assert deepspeed.COSINE_ENDS_AT == FINAL_FRACTION


ROUNDS = [
    ["tinyllama-1.1b", "--gpus", "8xa100-40gb", "--seq-len", "2048", "--global-batch", "64"],
    ["llama-3.1-8b", "--gpus", "8xh100-80gb", "--seq-len", "4096", "--global-batch", "64"],
    ["llama-3.2-3b", "--gpus", "4xh100-80gb", "--seq-len", "2048", "--global-batch", "32",
     "--zero", "2", "--schedule", "linear", "--clip", "0.5"],
    ["llama-3.2-1b", "--gpus", "h100-80gb", "--seq-len", "2048", "--global-batch", "16",
     "--precision", "fp32", "--schedule", "constant"],
]  # fmt: skip


@pytest.mark.few(only=["llama-3.2-1b"])
@pytest.mark.parametrize("asked", ROUNDS, ids=lambda asked: asked[0])
def test_a_plan_that_is_exported_and_read_back_is_the_same(asked, tmp_path, capsys):
    first, second, config = tmp_path / "1.yaml", tmp_path / "2.yaml", tmp_path / "ds.json"
    assert main(["plan", *asked, "--no-proof", "--tp", "1", "--pp", "1", "-o", str(first)]) == 0
    assert main(["export", str(first), "--to", "deepspeed", "-o", str(config)]) == 0
    where = [asked[0], *asked[1:5]]
    assert main(["plan", *where, "--no-proof", "--from", str(config), "-o", str(second)]) == 0
    assert "not read" in capsys.readouterr().out
    ours, theirs = (yaml.safe_load(path.read_text()) for path in (first, second))
    assert ours["strategy"] == theirs["strategy"]
    assert ours["job"] == theirs["job"]


def test_a_file_that_is_no_json_is_one_sentence(tmp_path, capsys):
    path = tmp_path / "ds.json"
    path.write_text('{"bf16": {"enabled": true},\n "fp16" 3}')
    assert main(["plan", "tinyllama-1.1b", "--gpus", "h100-80gb", "--from", str(path)]) == 2
    error = capsys.readouterr().err
    assert "line 2, column 9" in error
    assert error.count("\n") == 1


def test_json_says_what_was_lost(tmp_path, capsys):
    plan = tmp_path / "plan.yaml"
    assert main(["plan", *ROUNDS[0], "--no-proof", "-o", str(plan)]) == 0
    capsys.readouterr()
    assert main(["export", str(plan), "--to", "accelerate", "--json"]) == 0
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["schema"] == "brimful.export/2"
    assert told["predicted_peak_allocated_bytes"] > 2**30
    assert re.search(r"FITS, per GPU: [\d.]+ GiB of [\d.]+ GiB, predicted", told["text"])
    seed = next(each for each in told["lost"] if each["field"] == "seed")
    assert (seed["value"], seed["changes"]) == ("0", "mathematics")


def test_how_much_would_lie_on_nvme_is_said(tmp_path, capsys):
    kept = {"stage": 3, "offload_optimizer": {"device": "nvme"}}
    path = tmp_path / "nvme.json"
    batch = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}
    path.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": kept, **batch}))
    asked = ["tinyllama-1.1b", "--gpus", "2xrtx-3090", "--seq-len", "512", "--from", str(path)]
    main(["plan", *asked, "--no-proof"])
    told = " ".join(capsys.readouterr().out.split())
    states = 12 * parameter_count(load_model("tinyllama-1.1b")).total
    assert f"{format_bytes(states)} of optimizer state are on NVMe, of all GPUs" in told
    assert "a disk's speed is not known" in told


def test_what_lies_on_nvme_takes_none_of_the_host(tmp_path, capsys):
    kept = {"stage": 3, "offload_optimizer": {"device": "nvme"}}
    path = tmp_path / "nvme.json"
    batch = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}
    path.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": kept, **batch}))
    asked = ["plan", "llama-3.1-8b", "--gpus", "2xa100-80gb", "--seq-len", "512", "--from"]
    code = main([*asked, str(path), "--no-proof", "--host-memory", "90GiB"])
    told = " ".join(capsys.readouterr().out.split())
    assert "of optimizer state, beside the 90.00 GiB of a host, are on NVMe" in told
    assert (code, told.split()[0]) == (0, "FITS")


def test_what_zero_plus_plus_keeps_and_sends_is_told(tmp_path, capsys):
    """A second copy of the parameters was "not read", and its bytes are a division."""
    zero = {"stage": 3, "zero_hpz_partition_size": 4, "zero_quantized_weights": True}
    content = {"bf16": {"enabled": True}, "zero_optimization": zero}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**content, "train_micro_batch_size_per_gpu": 1}))
    read = read_source(path, num_devices=8, num_layers=30)
    assert read.second_copy == 4
    assert not any("hpz" in each for each in read.unread)
    asked = ["smollm2-135m", "--gpus", "8xl4", "--seq-len", "256", "--no-proof"]
    main(["plan", *asked, "--from", str(path)])
    told = " ".join(capsys.readouterr().out.split())
    assert f"shared by 4 GPUs, {134_515_008 * 2 / 4 / 2**20:.2f} MiB of each" in told
    assert "zero_quantized_weights: fewer bytes are sent" in told
    zero["zero_hpz_partition_size"] = 0
    path.write_text(json.dumps({**content, "train_micro_batch_size_per_gpu": 1}))
    with pytest.raises(InputError, match="zero_hpz_partition_size is 0"):
        read_source(path, num_devices=8, num_layers=30)


def test_an_optimizer_that_is_not_run_is_left_to_the_refusal_that_names_the_nearest(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"optimizer": {"type": "Lion", "params": {"lr": 1e-4}}}))
    found = read_deepspeed(path, num_devices=1, num_layers=2)
    assert {each.flag: each.value for each in found.taken}["optimizer"] == "lion"
