"""What each verb promises to programs (JSON, exit codes) and to people (widths, help)."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest
import yaml
from tests.cli.conftest import TINY

from brimful.cli.main import VERBS, parser_of
from brimful.cost.outside import middle_outside
from brimful.hardware.gpus import device_named
from brimful.hardware.names import find_gpu
from brimful.show.terminal import MOST_OF_ALL
from brimful.units import format_seconds

INPUTS = {
    "job": {
        *("model", "task", "method", "precision", "optimizer", "seq_len", "global_batch"),
        *("num_steps", "learning_rate", "warmup_steps", "weight_decay", "clip", "seed"),
        *("weights", "adapter", "loss_scale", "beta1", "beta2", "epsilon", "packing", "schedule"),
        "preference",
        "keep_fp32",
        "router_aux_loss",
        "router_z_loss",
        "allow",
        "quantization",
        "dropout",
    },
    "cluster": {"name", "device", "num_devices", "host_ram_bytes"},
    "strategy": {
        *("micro_batch", "activation_checkpointing", "loss_chunks", "attention", "accumulate"),
        *(
            "zero",
            "dp_replicate",
            "dp_shard",
            "fsdp",
            "tp",
            "ep",
            "pp",
            "reference",
            "engine",
            "engine_settings",
            "offload",
        ),
        *("pp_schedule", "stages_per_device", "stage_blocks", "optimizer_in_backward", "allocator"),
        *("compile", "fused_kernels"),
    },
}
LLAMA_8B = ("llama-3.1-8b", "--gpus", "h100-80gb", "--seq-len", "8192", "--global-batch", "8")


def one_object(said):
    """Decode what was printed; json.loads refuses anything beside one object."""
    assert said.err == ""
    return json.loads(said.out)


def rungs_of(keys):
    return {key.split("_")[0] for key in keys} & {"predicted", "simulated", "measured"}


def check_inputs(told):
    for part, fields in INPUTS.items():
        assert set(told[part]) == fields


def test_estimate_json(brimful):
    told = one_object(brimful("estimate", "tinyllama-1.1b", "--gpus", "a100-40gb", "--json"))
    assert told["schema"] == "brimful.estimate/1"
    check_inputs(told)
    assert (told["job"]["precision"], told["strategy"]["micro_batch"]) == ("bf16-mixed", 1)
    assert told["fits"] is True
    peak = told["predicted_peak_allocated_bytes"]
    assert sum(item["num_bytes"] for item in told["items"]) == peak
    assert max(phase["num_bytes"] for phase in told["phases"]) == peak
    for item in told["items"]:
        assert set(item) == {"name", "phase", "num_bytes", "where", "why"}
    for band in ("predicted_peak_reserved_bytes", "predicted_process_bytes"):
        assert told[band]["low"] <= told[band]["high"]
    assert rungs_of(told) == {"predicted"}


@pytest.mark.parametrize(
    ("ask", "verdict", "reason", "num_left_out"),
    [
        ("qwen2.5-7b --gpus 4xa100-40gb --ac full", "TIGHT", "emptying the allocator's cache", 0),
        ("llama-3.1-8b --gpus rtx-4090", "NO", "short by", 0),
        ("tinyllama-1.1b --gpus a100-40gb", "FITS", "", 0),
        ("qwen3-8b --gpus h100-80gb --offload optimizer --host-memory 40GiB", "NO", "host", 2),
    ],
)
def test_the_json_of_an_estimate_has_what_its_text_says(
    brimful, ask, verdict, reason, num_left_out
):
    """``num_left_out``: ways, the last of them, for which twelve lines have no room."""
    argv = ("estimate", *ask.split())
    told, text = one_object(brimful(*argv, "--json")), brimful(*argv)
    assert text.out.startswith(verdict)
    assert (told["verdict"], told["fits"]) == (verdict, verdict == "FITS")
    assert reason in told["reason"]
    assert bool(told["reason"]) == bool(reason)
    said = " ".join(text.out.split())
    assert len(text.out.splitlines()) == MOST_OF_ALL or not num_left_out
    num_said = len(told["ways_out"]) - num_left_out
    for place, way in enumerate(told["ways_out"]):
        words = way["words"].partition(" (")[0]  # why is left out where lines are lacking
        assert (words in said) == (place < num_said)
        again = one_object(brimful(*argv, *way["flags"].split(), "--json"))
        assert again["verdict"] == "FITS", way
    assert bool(told["ways_out"]) == (verdict != "FITS")


def test_plan_json(brimful, folder):
    said = brimful(
        "plan", *TINY, "--global-batch", "4", "--seq-len", "32", "--json", "-o", "p.yaml"
    )
    told = one_object(said)
    assert told["schema"] == "brimful.plan-search/1"
    check_inputs(told)
    assert told["best"]["strategy"] == told["strategy"]
    assert told["best"]["peak_bytes"] == told["predicted_peak_allocated_bytes"]
    assert sum(i["num_bytes"] for i in told["items"]) == told["predicted_peak_allocated_bytes"]
    assert 0 < told["num_fitting"] <= told["num_considered"]
    assert all(row["fits"] for row in told["runners_up"])
    assert not any(row["fits"] for row in told["rejected"])
    assert told["ways_out"] == []
    assert (folder / "p.yaml").exists()


@pytest.mark.parametrize("num_taken", [1, pytest.param(None, marks=pytest.mark.long)])
def test_a_plan_that_does_not_fit_says_what_would(brimful, num_taken):
    # So that each of many searches is short.
    pinned = ("--micro-batch", "1", "--loss-chunks", "1", "--ac", "full")
    said = brimful("plan", *LLAMA_8B, *pinned, "--offload", "none", "--json", "--no-proof")
    told = one_object(said)
    assert said.code == 1
    assert (told["fits"], told["num_fitting"], told["runners_up"]) == (False, 0, [])
    assert len(told["ways_out"]) >= 3
    # Each way out is believed only once it was taken.
    for way in told["ways_out"][:num_taken]:
        flags = way.partition(" would fit")[0].split()
        rest = [part for part in LLAMA_8B if "--gpus" not in flags or part not in LLAMA_8B[1:3]]
        assert brimful("plan", *rest, *pinned, *flags, "--no-proof").code == 0, way


def strategy_flags(told, flags):
    """Spell the strategy, but for how it is spread where other flags say that."""
    spread = {"zero", "dp_replicate", "dp_shard"} if "--zero" in flags else set()
    unset = {n for n, value in told["strategy"].items() if value in ("none", [], False)} - {
        "activation_checkpointing"
    }
    kept = {n: value for n, value in told["strategy"].items() if n not in spread | unset}
    return [part for name, value in kept.items() for part in (f"--{name.replace('_', '-')}", value)]


def test_exit_codes_say_whether_it_fits(brimful):
    tiny_gpu = ("--gpus", "a100-40gb", "--memory-limit")
    assert brimful("estimate", "tinyllama-1.1b", *tiny_gpu, "39GiB").code == 0
    assert brimful("estimate", "tinyllama-1.1b", *tiny_gpu, "10GiB").code == 1
    pinned = ("--offload", "none", "--micro-batch", "1", "--loss-chunks", "1", "--no-proof")
    assert brimful("plan", "tinyllama-1.1b", *tiny_gpu, "10GiB", *pinned).code == 1


@pytest.mark.torch
def test_a_plan_file_is_simulated_as_it_was_planned(brimful, folder):
    argv = ("--seq-len", "32", "--global-batch", "4", "-o", "p.yaml", "--json")
    planned = one_object(brimful("plan", *TINY, *argv))
    said = brimful("simulate", "p.yaml", "--json", "-o", "simulation.json")
    told = one_object(said)
    assert (said.code, told["fits"]) == (0, True)
    assert told["schema"] == "brimful.simulation/1"
    for part in INPUTS:
        assert told[part] == planned[part]
    assert told["predicted_peak_allocated_bytes"] == planned["predicted_peak_allocated_bytes"]
    peak = told["simulated_peak_allocated_bytes"]
    assert sum(item["num_bytes"] for item in told["items"]) == peak
    kept = json.loads((folder / "simulation.json").read_text())
    assert kept["simulated_peak_allocated_bytes"] == peak
    assert rungs_of(kept) == {"simulated"}


@pytest.mark.torch
@pytest.mark.usefixtures("folder")
def test_a_simulation_tells_what_nvidia_smi_shows(brimful):
    """As a prediction does: what the allocator holds, and the middle of what lies outside it."""
    told = one_object(
        brimful("simulate", *TINY, "--gpus", "a100-40gb", "--seq-len", "32", "--json")
    )
    outside = told["simulated_process_bytes"] - told["reserved"]["simulated_peak_reserved_bytes"]
    assert outside == middle_outside(device_named(find_gpu("a100-40gb")), num_groups=0)


@pytest.mark.torch
def test_a_job_without_a_formula_is_planned_by_simulating(brimful, folder):
    argv = (
        *TINY,
        "--optimizer-in-backward",
        "--clip",
        "0",
        "--seq-len",
        "32",
        "--global-batch",
        "1",
    )
    planned = one_object(brimful("plan", *argv, "--json", "-o", "p.yaml"))
    assert (planned["rung"], planned["fits"]) == ("simulated", True)
    assert planned["best"]["strategy"] == planned["strategy"]
    assert planned["best"]["step_s"] > 0
    assert {v for k, v in planned.items() if k.startswith("predicted_")} == {None}
    assert yaml.safe_load((folder / "p.yaml").read_text())["estimate"] is None
    told = one_object(brimful("simulate", "p.yaml", "--json"))
    assert told["predicted_peak_allocated_bytes"] is None
    assert told["simulated_peak_allocated_bytes"] == planned["best"]["peak_bytes"]
    assert told["simulated_step_s"] == pytest.approx(planned["best"]["step_s"])
    tokens = told["simulated_tokens_per_s"] * told["simulated_step_s"]
    assert tokens == pytest.approx(32)
    said = brimful("estimate", "p.yaml", "--json")
    assert said.code == 2
    assert "optimizer_in_backward=True has no formula" in said.err
    assert "brimful plan" in said.err
    said = brimful("estimate", "p.yaml")
    assert said.code == 0
    assert "optimizer_in_backward=True: it is simulated" in said.err
    costs = ("speed ", "run ")
    lines = said.out.splitlines()
    step = format_seconds(planned["best"]["step_s"])
    assert [step in line for line in lines if line.startswith(costs)] == [True, False]
    plain = [line for line in lines if not line.startswith(costs)]
    assert plain == brimful("simulate", "p.yaml").out.splitlines()


@pytest.mark.parametrize("spread_by", ["--zero=0", "--zero=3", "--tp=2"])
def test_a_simulation_of_several_gpus_in_json_has_the_time_of_what_they_send(spread_by, brimful):
    """As the formula has it, beside which it counts copies of gradients into buckets."""
    flags = ("qwen3-0.6b", "--seq-len", "512", "--micro-batch", "2")
    spread = (*flags, "--gpus", "2x1xa100-80gb", "--network", "ethernet-10", spread_by)
    told = one_object(brimful("simulate", *spread, "--json"))
    formula = one_object(brimful("estimate", *spread, "--json"))
    assert told["simulated_step_s"] == pytest.approx(formula["predicted_step_s"], rel=0.02)
    alone = one_object(brimful("estimate", *flags, "--gpus", "a100-80gb", "--json"))
    assert told["simulated_step_s"] > 2 * alone["predicted_step_s"]  # a slow network


@pytest.mark.torch
def test_beside_a_router_that_is_not_even_nothing_of_an_even_one_is_said(brimful):
    """It offered 28.44 GiB more without checkpointing, which were 180 with that router."""
    flags = ("granite-3.0-1b-a400m", "--gpus", "2xa100-80gb", "--ep", "2", "--seq-len", "512")
    said = brimful("simulate", *flags, "--ac", "full", "--routing", "worst")
    labels = {line.split()[0] for line in said.out.splitlines() if line[:1] not in {"", " "}}
    assert said.code == 0
    assert not {"or", "tensors"} & labels
    assert "worst: every token of the 2 devices prefers this one's experts, 2 x the rows" in (
        " ".join(said.out.split())
    )


@pytest.mark.torch
@pytest.mark.usefixtures("folder")
def test_what_was_simulated_without_a_formula_is_shown_with_dashes(brimful):
    argv = (*TINY, "--optimizer-in-backward", "--clip", "0", "--seq-len", "32")
    said = brimful("simulate", *argv, "-v")
    assert said.code == 0
    peak = next(line for line in said.out.splitlines() if line.startswith("peak allocated"))
    assert peak.split()[2] == "-"
    planned = brimful("plan", *argv, "--micro-batch", 1, "--loss-chunks", 1, "--ac", "none")
    assert "only one fits, 1 simulated" in " ".join(planned.out.split())
    assert max(map(len, planned.out.splitlines())) <= 100


@pytest.mark.torch
@pytest.mark.usefixtures("plan")
def test_train_and_report_json(brimful, folder):
    said = brimful("train", "plan.yaml", "--data", "data.txt", "--out", "run", "--json")
    told = json.loads(said.out)
    assert (said.code, told["schema"], told["num_steps"]) == (0, "brimful.train/1", 3)
    assert told["model"] == "run/model"
    assert "step 3/3" in said.err
    verdict = one_object(brimful("report", "run", "--json"))
    assert verdict["schema"] == "brimful.verdict/1"
    assert (folder / "run" / "report.html").exists()
    rows = {row["name"]: row for row in verdict["rows"]}
    assert rows["peak allocated"]["measured"] > 0
    assert rows["peak allocated"]["simulated"] is None


@pytest.mark.torch
def test_an_outdated_prediction_is_made_anew(brimful, folder, plan):
    plan["estimate"]["predicted_peak_allocated_bytes"] *= 2
    (folder / "edited.yaml").write_text(yaml.safe_dump(plan))
    said = brimful("train", "edited.yaml", "--data", "data.txt", "--out", "run")
    assert said.code == 0
    assert "edited.yaml was changed since it was made" in said.err
    told = one_object(brimful("estimate", "edited.yaml", "--json"))
    verdict = one_object(brimful("report", "run", "--json"))
    peak = next(row for row in verdict["rows"] if row["name"] == "peak allocated")
    assert peak["predicted"] == told["predicted_peak_allocated_bytes"]


def test_models_json(brimful):
    told = one_object(brimful("models", "--json"))
    rows = {row["name"]: row for row in told["models"]}
    assert told["schema"] == "brimful.models/1"
    assert rows["llama-3.1-8b"] == {
        "name": "llama-3.1-8b",
        "model_type": "llama",
        # Meta's model card counts 8,030,261,248.
        "num_parameters": 8_030_261_248,
        "num_active_parameters": 8_030_261_248,
        "predicted": "by formula",
    }
    assert rows["gemma-2-2b"]["predicted"] == rows["mixtral-8x7b"]["predicted"] == "by formula"
    assert rows["deepseek-v3"]["predicted"] == "once traced"
    assert rows["t5-small"]["predicted"] == "once traced"
    # EleutherAI's model card counts 70,426,624.
    pythia, nemotron = rows["pythia-70m"], rows["nemotron-3-nano-30b-a3b"]
    assert (pythia["num_parameters"], pythia["predicted"]) == (70_426_624, "once traced")
    assert pythia["num_active_parameters"] is None
    assert (nemotron["num_parameters"], nemotron["predicted"]) == (31_577_937_344, "once traced")


def test_gpus_json(brimful):
    told = one_object(brimful("gpus", "--json"))
    names = [row["name"] for row in told["gpus"]]
    assert told["schema"] == "brimful.gpus/1"
    assert names[0] == "local"
    assert {"t4", "a100-40gb", "h100-80gb"} <= set(names)
    assert all(row["usable_bytes"] > 0 for row in told["gpus"])


SCREENS = [
    ("estimate", "tinyllama-1.1b", "--gpus", "a100-40gb"),
    ("plan", "tinyllama-1.1b", "--gpus", "a100-40gb", "--global-batch", "64"),
    ("plan", *LLAMA_8B),
    ("models",),
    ("gpus",),
    ("--help",),
    ("--version",),
    *((verb, "--help") for verb in VERBS),
]


@cache
def screens():
    """Run all screens in one process of their own, piped; refuse torch. Return lines of each."""
    between = "-- the next screen --"
    code = "import sys; sys.modules['torch'] = None; from brimful.cli.main import main\n"
    for argv in SCREENS:
        code += (
            "try:\n"
            f"    code = main({list(argv)!r})\n"
            "except SystemExit as end:\n"
            "    code = end.code or 0\n"
            "assert code in {0, 1}\n"
            f"print({between!r})\n"
        )
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [part.strip("\n").splitlines() for part in done.stdout.split(between + "\n")]
    return dict(zip(SCREENS, lines, strict=False))


@pytest.mark.parametrize("argv", SCREENS, ids=" ".join)
def test_screens_fit_a_hundred_columns_and_import_no_torch(argv):
    lines = screens()[argv]
    assert lines
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_a_narrow_terminal(verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = parser_of(verb).format_help()
    assert text.startswith(f"usage: brimful {verb}")
    assert max(map(len, text.splitlines())) <= 80


def test_every_flag_has_a_word_of_help():
    for verb in VERBS:
        bare = [a.dest for a in parser_of(verb)._actions if not a.help]
        assert not bare, verb


@pytest.mark.torch
@pytest.mark.usefixtures("folder")
def test_a_simulation_with_states_on_the_host_has_a_time_in_json(brimful):
    flags = ("--seq-len", "32", "--gpus", "h100-80gb", "--offload", "optimizer", "--json")
    told = one_object(brimful("simulate", *TINY, *flags))
    assert told["simulated_step_s"] > 0


@pytest.mark.torch
@pytest.mark.usefixtures("folder")
def test_a_simulation_echoes_its_inputs_and_says_whether_it_fits(brimful):
    said = brimful("simulate", *TINY, "--seq-len", "32", "-v")
    lines = said.out.splitlines()
    assert (said.code, lines[0].split()[0]) == (0, "FITS")
    assert "Inputs, with every default" in lines
    assert max(map(len, lines)) <= 100
    over = brimful("simulate", *TINY, "--seq-len", "32", "--memory-limit", "1MiB")
    assert (over.code, over.out.split()[0]) == (1, "NO")
    assert "of 0 B, short by" in " ".join(over.out.split())  # CUDA's context is more than that
    tiny = brimful("simulate", *TINY, "--seq-len", "32", "--card-memory", "1MiB")
    assert (tiny.code, tiny.out.split()[0]) == (1, "NO")
    assert "fails     in load" in tiny.out


def test_zero_of_one_copy_of_the_model_is_none(brimful):
    asked = ("estimate", "llama-3.2-1b", "--gpus", "4xh100-80gb", "--tp", 4, "--seq-len", 512)
    said = brimful(*asked, "--zero", 1)
    assert said.code == 0
    assert "--zero 1 shards over copies of the model, of which there is one: as 0" in said.err
    assert said.out == brimful(*asked, "--zero", 0).out
