"""``--for``: a plan is searched among what a program can be told, and simulated by it."""

import json
from importlib.util import find_spec

import pytest

from brimful.cli.main import main
from brimful.errors import RunError

ASKED = ("llama-3.2-1b", "--gpus", "h100-80gb", "--seq-len", "512", "--global-batch", "4")
TINY = {
    "model_type": "llama", "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "tie_word_embeddings": False, "max_position_embeddings": 2048,
}  # fmt: skip


def said(capsys, *argv):
    code = main([str(word) for word in argv])
    found = capsys.readouterr()
    return code, " ".join(found.out.split()), " ".join(found.err.split())


@pytest.mark.parametrize("to", ["hf-trainer", "trl", "accelerate", "torchtitan", "deepspeed"])
def test_what_is_planned_can_be_told(tmp_path, capsys, to):
    path = tmp_path / "plan.yaml"
    code, out, _ = said(capsys, "plan", *ASKED, "--for", to, "--no-proof", "-o", path)
    assert code == 0
    assert "program numbers are of Brimful's own loop told the same settings" in out
    assert f"brimful export {path} --to {to}" in out.replace("- ", "-")
    code, text, _ = said(capsys, "export", path, "--to", to, "--json")
    lost = {each["field"] for each in json.loads(text)["lost"] if each["changes"] == "memory"}
    assert lost <= {"adapter", "micro_batch"}  # what a program of accelerate is left


@pytest.mark.parametrize(
    ("name", "text", "program"),
    [
        ("zero.json", '{"zero_optimization": {"stage": 3}}', "deepspeed"),
        ("sft.yaml", "model_name_or_path: llama-3.2-1b\nbf16: true\nmax_steps: 9\n", "trl"),
    ],
)
def test_settings_of_another_program_s_file_are_not_its_numbers(
    tmp_path, capsys, name, text, program
):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    _, out, _ = said(capsys, "plan", *ASKED, "--from", path, "--no-proof")
    words = f"settings that {program} takes; numbers are of Brimful's own loop"
    assert f"program {words}; --for {program} plans for it" in out
    _, out, _ = said(capsys, "plan", *ASKED, "--no-proof")
    assert "program " not in out


@pytest.mark.parametrize(
    ("name", "text", "chunks"),
    [
        ("zero.json", '{"zero_optimization": {"stage": 3}}', 1),
        (
            "lf.yaml",
            "model_name_or_path: llama-3.2-1b\nstage: sft\nfinetuning_type: full\nbf16: true\n",
            1,
        ),
    ],
)
def test_what_a_program_does_not_do_is_not_what_makes_its_settings_fit(
    tmp_path, capsys, name, text, chunks
):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    asked = ("plan", *ASKED, "--from", path, "--no-proof", "--json")
    found = json.loads(said(capsys, *asked)[1])
    rows = [found["best"], *found["runners_up"], *found["rejected"]]
    assert {row["strategy"]["loss_chunks"] for row in rows} == {chunks}
    ours = json.loads(said(capsys, *asked, "--for", "brimful")[1])
    rows = [ours["best"], *ours["runners_up"], *ours["rejected"]]
    assert len({row["strategy"]["loss_chunks"] for row in rows}) > 1


def test_what_does_not_fit_says_so_when_it_is_exported_and_what_works_is_named(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    asked = ("llama-3.2-1b", "--gpus", "rtx-3060", "--seq-len", "512", "--global-batch", "1")
    fixed = ("--ac", "full", "--micro-batch", "1")
    code, out, _ = said(
        capsys, "plan", *asked, *fixed, "--for", "torchtitan", "--no-proof", "-o", path
    )
    assert code == 1
    assert "instead --for brimful --offload optimizer would fit here" in out
    code, out, err = said(capsys, "export", path, "--to", "torchtitan")
    assert code == 1
    assert "Trainer.Config" in out
    assert f"{path} does not fit: " in err
    assert "GiB of " in err
    assert said(capsys, "export", path, "--to", "torchtitan", "--json")[0] == 1


def test_a_program_that_trains_in_another_recipe_is_planned_in_it(capsys):
    code, out, _ = said(capsys, "plan", *ASKED, "--for", "axolotl", "--no-proof", "--json")
    assert code == 0
    assert json.loads(out)["job"]["precision"] == "bf16"


def test_a_flag_that_it_cannot_be_told_is_refused(capsys):
    code, out, err = said(capsys, "plan", *ASKED, "--for", "hf-trainer", "--loss-chunks", "4")
    assert (code, out) == (2, "")
    assert "hf-trainer cannot be told loss_chunks=4" in err
    assert "leave --loss-chunks out" in err


@pytest.mark.skipif(find_spec("trl") is not None, reason="it would run")
@pytest.mark.torch
def test_a_simulation_takes_what_the_program_does_anyway(capsys):
    flags = ("llama-3.2-1b", "--gpus", "h100-80gb", "--seq-len", "512", "--for", "trl")
    code, _, err = said(capsys, "simulate", *flags)
    assert code == 2
    assert "TRL runs here as it is, and is not installed" in err  # not that it has no whole loss
    code, _, err = said(capsys, "simulate", *flags, "--loss-chunks", "1")
    assert "trl cannot be told loss_chunks=1" in err


def test_a_job_that_it_cannot_be_given_is_refused(capsys):
    code, _, err = said(capsys, "plan", *ASKED, "--for", "trl", "--task", "dpo", "--no-proof")
    assert code == 2
    assert "task=dpo cannot be said to trl" in err


@pytest.mark.parametrize(("named", "words"), [("unsloth", "--for trl")])
def test_a_program_that_is_not_planned_for_names_what_there_is(capsys, named, words):
    code, _, err = said(capsys, "plan", *ASKED, "--for", named)
    assert code == 2
    assert words in err


def test_stages_of_zero_may_be_a_list(capsys):
    asked = ("llama-3.2-1b", "--gpus", "2xh100-80gb", "--zero", "2,3", "--no-proof")
    assert said(capsys, "plan", *asked)[0] == 0


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return (tmp_path, "--gpus", "h100-80gb", "--seq-len", "256", "--global-batch", "8")


@pytest.mark.torch
def test_the_trainer_itself_is_simulated(tiny, capsys):
    asked = (*tiny, "--micro-batch", "4", "--json")
    code, own, _ = said(capsys, "simulate", *asked)
    assert code == 0
    code, theirs, _ = said(capsys, "simulate", *asked, "--for", "hf-trainer")
    assert code == 0
    found = json.loads(theirs)
    assert "Trainer" in found["program"]["name"]
    ours = json.loads(own)["simulated_peak_allocated_bytes"]
    # One GPU, all trained: the Trainer does what our loop does.
    assert found["simulated_peak_allocated_bytes"] == pytest.approx(ours, rel=0.01)


def test_json_says_whose_numbers_they_are(capsys):
    code, out, _ = said(capsys, "plan", *ASKED, "--for", "deepspeed", "--no-proof", "--json")
    assert code == 0
    program = json.loads(out)["program"]
    assert (program["name"], program["is_simulated"]) == ("deepspeed", False)
    assert program["why_not"] == "" or "deepspeed is not installed" in program["why_not"]


def test_a_file_that_would_not_be_written_is_refused(tiny, capsys, tmp_path):
    path = tmp_path / "out.json"
    asked = (*tiny, "--micro-batch", "4", "--for", "hf-trainer", "-o", path)
    code, _, err = said(capsys, "simulate", *asked)
    assert code == 2
    assert "does not go with --for" in err
    assert not path.exists()


def test_a_program_that_fails_leaves_a_plan_unproven(tiny, capsys, monkeypatch):
    def fails(*_):
        raise RunError("rank 0 of it ended with ValueError: no")

    monkeypatch.setattr("brimful.programs.running.run_in_child", fails)
    code, out, _ = said(capsys, "plan", *tiny, "--for", "hf-trainer", "--micro-batch", "4")
    assert code == 0
    assert "unproven rank 0 of it ended with ValueError: no" in out


@pytest.mark.torch
def test_a_plan_is_proven_by_the_trainer(tiny, capsys):
    code, out, _ = said(capsys, "plan", *tiny, "--for", "hf-trainer", "--micro-batch", "4")
    assert code == 0
    assert "proven simulated on a pretend GPU" in out
    assert "Trainer itself; predicted: Brimful's own loop" in out


@pytest.mark.parametrize("to", ["trl", "axolotl", "torchtitan", "accelerate"])
def test_a_program_that_is_not_installed_says_how_to_install_it(tiny, capsys, monkeypatch, to):
    place = "base" if to == "accelerate" else to
    monkeypatch.setattr(f"brimful.programs.{place}.find_spec", lambda _: None)
    recipe = ("--precision", "bf16", "--packing", "none") if to == "axolotl" else ()
    asked = (*(ASKED if to == "torchtitan" else tiny), "--micro-batch", "4", *recipe)
    code, _, err = said(capsys, "simulate", *asked, "--for", to)
    assert code == 2
    assert f"pip install {to}" in err


@pytest.mark.torch
def test_accelerate_itself_is_simulated(tiny, capsys):
    asked = (*tiny, "--micro-batch", "4", "--json")
    ours = json.loads(said(capsys, "simulate", *asked)[1])["simulated_peak_allocated_bytes"]
    code, theirs, _ = said(capsys, "simulate", *asked, "--for", "accelerate")
    assert code == 0
    found = json.loads(theirs)
    assert "Accelerator" in found["program"]["name"]
    assert found["simulated_peak_allocated_bytes"] == pytest.approx(ours, rel=0.01)


@pytest.mark.torch
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_accelerate_shards_by_deepspeed(tiny, capsys, stage):
    asked = (*tiny, "--micro-batch", "4", "--precision", "bf16-master", "--engine", "deepspeed")
    code, out, _ = said(capsys, "simulate", *asked, "--zero", stage, "--for", "accelerate")
    assert code == 0
    assert "Accelerator" in out


def test_blocks_that_accelerate_cannot_be_told_are_refused(tiny, capsys):
    asked = (*tiny, "--micro-batch", "4", "--activation-checkpointing", "full:2")
    code, _, err = said(capsys, "simulate", *asked, "--for", "accelerate")
    assert code == 2
    assert "every block recomputed in full or none" in err


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torchtitan") is None, reason="torchtitan is not installed")
def test_torchtitan_itself_is_simulated(capsys):
    line = (
        "torchrun --nproc-per-node 2 -m torchtitan.train --module llama3 "
        "--config llama3_debugmodel "
        "--training.disable_cuda_graphs --training.local_batch_size 1 --training.seq_len 256"
    )
    code, out, _ = said(capsys, "simulate", "--from", line, "--gpus", "h100-80gb", "--json")
    assert code == 0
    assert json.loads(out)["simulated_peak_allocated_bytes"] > 0


@pytest.mark.torch
@pytest.mark.skipif(find_spec("axolotl") is None, reason="Axolotl is not installed")
def test_axolotl_itself_is_simulated(capsys):
    asked = (*ASKED, "--micro-batch", "1", "--method", "lora", "--packing", "none", "--json")
    code, out, _ = said(capsys, "simulate", *asked, "--for", "axolotl")
    assert code == 0
    assert "Axolotl" in json.loads(out)["program"]["name"]


@pytest.mark.torch
def test_a_program_that_has_liger_s_kernels_is_given_them_where_nothing_fits_without(brimful):
    """Axolotl's loss has whole logits, of 49,152 words here; Liger's has none."""
    asked = ("plan", "smollm2-135m", "--for", "axolotl", "--gpus", "h100", "--method", "lora")
    asked += ("--seq-len", 8192, "--global-batch", 1, "--no-proof")
    plain = brimful(*asked)
    assert plain.code == 0
    assert "Liger" not in plain.out
    fused = brimful(*asked, "--memory-limit", "4GiB")
    assert fused.code == 0, fused.out
    assert "Liger kernels" in fused.out
