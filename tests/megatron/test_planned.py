"""``plan --for megatron``: the fastest layout that fits, as a command line that is read back."""

import json
import re

import pytest
import yaml

from brimful.cli.main import main
from brimful.hardware.gpus import load_cluster
from brimful.megatron import search
from brimful.megatron.blocks import Memory
from brimful.megatron.command_line import read_layout
from brimful.megatron.pipeline import LAYOUT, chunks_of, written
from brimful.megatron.states import load, moment_bytes, state_bytes
from brimful.programs.base import flags_of
from brimful.units import GIB

SMALL = ["plan", "llama-3.2-1b", "--for", "megatron", "--gpus", "4x4090", "--global-batch", "16"]


def test_it_fits_and_is_read_back_with_the_same_peak(tmp_path, capsys):
    path = tmp_path / "layout.yaml"
    assert main([*SMALL, "-o", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"]
    assert found["predicted_peak_reserved_bytes"] <= found["capacity_bytes"]
    assert main(["estimate", "--from", str(path), "--gpus", "4x4090", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    peaks = [rank["predicted_peak_allocated_bytes"] for rank in told["ranks"]]
    assert max(peaks) == found["predicted_peak_allocated_bytes"]
    assert told["predicted_tokens_per_s"] == pytest.approx(found["predicted_tokens_per_s"])


def test_the_answer_is_short(capsys):
    assert main(SMALL) == 0
    said = capsys.readouterr().out
    assert said.startswith("FITS      llama-3.2-1b by Megatron-LM on 4 x ")
    assert "layout    tensor-model-parallel-size " in said
    mfu = int(re.search(r"MFU (\d+)%", said)[1])
    assert 5 < mfu < 100
    assert len(said.splitlines()) <= 12


def test_a_run_of_some_length_has_days_and_dollars(capsys):
    assert main([*SMALL, "--tokens", "10B"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    rate = float(re.search(r"speed ([\d.]+)K tokens/s", said)[1]) * 1000
    days = float(re.search(r"\(10B tokens\): ([\d.]+) days, [\d,.]+ USD", said)[1])
    assert days == pytest.approx(10e9 / rate / 86400, rel=0.01)
    assert re.search(r"; \d+ TFLOP/s a GPU, MFU", said)


def test_where_it_was_written_is_said(tmp_path, capsys):
    path = tmp_path / "layout.yaml"
    assert main([*SMALL, "--tp", "1", "--pp", "1", "-o", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"written {path}, but the data's arguments" in said
    assert "give too --rotary-base" in said


def test_no_pinned_layout_is_left_for_another(capsys):
    assert main([*SMALL, "--tp", "2", "--pp", "2", "--json"]) == 0
    words = json.loads(capsys.readouterr().out)["layout"]
    assert words[words.index("--tensor-model-parallel-size") + 1] == "2"
    assert words[words.index("--pipeline-model-parallel-size") + 1] == "2"


def test_what_does_not_fit_says_what_it_lacks(capsys):
    argv = ["plan", "llama-3.1-70b", "--for", "megatron", "--gpus", "2x4090"]
    assert main(argv) == 1
    assert "short by" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--zero", "3"], "--zero is nothing that plan --for megatron searches"),
        (["--method", "lora"], "no formula for method=lora; use full"),
        (["--gpus", "local"], "is of CUDA GPUs"),
        (["--precision", "fp8"], "a rate in fp8 or a link is unknown"),
        (["--precision", "fp16"], "no formula for precision=fp16"),
        (["--gpus", "v100"], "the fastest layout is not known on NVIDIA V100"),
        (["--tp", "3"], "no tp, pp, cp and ep divide the heads"),
    ],
)
def test_what_it_does_not_search_is_refused_in_a_sentence(more, said, capsys):
    assert main([*SMALL, *more]) == 2
    assert said in capsys.readouterr().err


def test_a_simulation_wants_a_layout(capsys):
    assert main(["simulate", "llama-3.2-1b", "--for", "megatron"]) == 2
    assert "brimful plan MODEL --for megatron -o FILE" in capsys.readouterr().err


def test_fp8_is_planned_by_the_recipe_of_the_card(capsys):
    assert main([*SMALL, "--precision", "fp8", "--gpus", "4xh100", "--json"]) == 0
    on_hopper = json.loads(capsys.readouterr().out)["arguments"]
    assert on_hopper[on_hopper.index("--fp8-recipe") + 1] == "tensorwise"
    assert main([*SMALL, "--precision", "fp8", "--gpus", "4xb200", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["arguments"][found["arguments"].index("--fp8-recipe") + 1] == "mxfp8"
    assert main([*SMALL, "--gpus", "4xb200", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert found["predicted_step_s"] < plain["predicted_step_s"]


def test_a_long_sequence_is_parted(capsys):
    long = [*SMALL, "--gpus", "4xh100", "--seq-len", "65536", "--global-batch", "4", "--json"]
    assert main([*long, "--cp", "4"]) == 0
    words = json.loads(capsys.readouterr().out)["layout"]
    assert words[words.index("--context-parallel-size") + 1] == "4"
    assert main([*long, "--cp", "3"]) == 2  # four GPUs


@pytest.mark.parametrize(("layers", "stages"), [(61, 16), (61, 2), (47, 3), (7, 6), (5, 2)])
def test_layers_that_do_not_divide_are_written_down(layers, stages):
    text = written(layers, stages)
    flags = flags_of(
        ("--num-layers", str(layers), "--pipeline-model-parallel-size", str(stages), LAYOUT, text),
        "pretrain_gpt.py",
    )
    held = [sum(each) for each in chunks_of(flags)]
    assert len(held) == stages
    assert sum(held) == layers
    assert held[0] == min(held) == max(held) - 1


def test_a_model_whose_layers_no_stages_divide_is_planned(capsys):
    asked = ["--gpus", "32x8xh100", "--precision", "fp8", "--pp", "16", "--ep", "16"]
    asked += ["--seq-len", "4096", "--global-batch", "512", "--tp", "1"]
    assert main(["plan", "deepseek-v3", "--for", "megatron", *asked]) in {0, 1}
    said = capsys.readouterr().out
    assert "Et*3|(t*4|)*13t*3|t*3L" in " ".join(said.split())
    assert "speed " in said
    assert len(said.splitlines()) <= 12


def test_the_ends_count_as_layers_where_stages_divide_so(capsys):
    """Llama 3.1 405B has 126 layers, for 16 stages of 8 with its embedding and loss."""
    asked = ["--gpus", "512x8xh100", "--seq-len", "8192", "--global-batch", "2048", "--pp", "16"]
    assert main(["plan", "llama-3.1-405b", "--for", "megatron", *asked, "--json"]) == 0
    words = json.loads(capsys.readouterr().out)["layout"]
    assert "--account-for-embedding-in-pipeline-split" in words
    assert "--account-for-loss-in-pipeline-split" in words


@pytest.mark.parametrize("capacity_gib", [3, 7, 11])
def test_memory_looked_at_lazily_finds_what_looking_at_all_of_it_does(capacity_gib):
    fixed = ("--num-layers", "4", "--hidden-size", "2048", "--num-attention-heads", "32",
             "--ffn-hidden-size", "8192", "--seq-length", "2048", "--global-batch-size", "16",
             "--bf16", "--swiglu", "--max-position-embeddings", "2048", "--disable-bias-linear",
             "--use-distributed-optimizer")  # fmt: skip
    cluster = load_cluster("4x4090", memory_limit_bytes=None)

    def told(flags, world_size=4):
        return read_layout(flags_of((*fixed, *flags), "x"), vocab=32000, world_size=world_size,
                           stage=0, capability=(8, 9), kind="gpt")  # fmt: skip

    plain = told(("--micro-batch-size", "1"), 1)
    asked = search.Asked(cluster, told, plain, 16, capacity_gib * GIB, {})
    every = [each for d in search._degrees(asked) for each in search._candidates(asked, d)]
    fits = [c for c in every if all(peak.fits for peak in search._peaks(asked, c))]
    found = search.search(asked)
    if not fits:
        assert not all(peak.fits for peak in found.peaks)
        return
    best = min(search._step_s(asked, each) for each in fits)
    assert found.candidate.step_s == pytest.approx(best)
    assert found.num_looked_at < len(every) / 4


def test_states_are_what_loading_and_the_first_step_leave():
    for words in ((), ("--use-distributed-optimizer",)):
        at = read_layout(
            flags_of(
                ("--num-layers", "4", "--hidden-size", "64", "--num-attention-heads", "4",
                 "--seq-length", "64", "--max-position-embeddings", "64", "--bf16",
                 "--micro-batch-size", "2", *words), "x",
            ),
            vocab=512, world_size=2, stage=0, capability=(9, 0), kind="gpt",
        )  # fmt: skip
        kept = sum(block.num_bytes for block in load(Memory(), at))
        assert state_bytes(at) == kept + sum(moment_bytes(at))


def test_a_command_line_of_some_steps_has_days_and_dollars(tmp_path, capsys):
    path = tmp_path / "layout.yaml"
    assert main([*SMALL, "-o", str(path)]) == 0
    arguments = yaml.safe_load(path.read_text())
    arguments["MODEL_ARGS"]["--train-iters"] = 5000
    path.write_text(yaml.safe_dump(arguments))
    capsys.readouterr()
    assert main(["estimate", "--from", str(path), "--gpus", "4x4090"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    found = re.search(r"run 5,000 steps: ([\d.]+) (h|days), ([\d,.]+) USD \(([\d.]+) a GPU-h", said)
    hours = float(found[1]) * (24 if found[2] == "days" else 1)
    assert float(found[3].replace(",", "")) == pytest.approx(hours * 4 * float(found[4]), rel=0.02)
