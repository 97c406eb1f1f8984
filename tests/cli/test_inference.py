import json
import re

import pytest

from brimful.cost.formats import DYNAMIC, FORMATS, SERVED
from samples import TINY_LLAMA

TASK = ("--task", "inference")
LLAMA = ("estimate", "llama-3.1-8b", *TASK)
CARD = ("--gpus", "rtx-4090", "--seq-len", "8192")


def told(said):
    assert said.err == ""
    return json.loads(said.out)


def test_estimate_json(brimful):
    said = brimful(*LLAMA, *CARD, "--weights-format", "nf4", "--json")
    found = told(said)
    assert said.code == 0
    assert found["schema"] == "brimful.inference/1"
    assert found["job"]["weights_format"] == "nf4"
    assert found["job"]["compute"] == "bf16"
    assert (found["job"]["seq_len"], found["job"]["prompt_len"]) == (8192, 8192)
    assert found["job"]["num_sequences"] == 1
    assert found["fits"] is True
    peak = found["predicted_peak_allocated_bytes"]
    assert sum(item["num_bytes"] for item in found["items"]) == peak
    shown = set(FORMATS) - DYNAMIC - SERVED - {"tf32"}
    assert {row["weights_format"] for row in found["formats"]} == shown
    assert found["limits"]["num_sequences"] >= 1
    assert not [key for key in found if key.startswith(("simulated", "measured"))]


def test_a_plain_precision_is_its_own_format(brimful):
    found = told(brimful(*LLAMA, *CARD, "--precision", "fp16", "--prompt-len", "512", "--json"))
    assert (found["job"]["weights_format"], found["job"]["compute"]) == ("fp16", "fp16")
    assert found["job"]["prompt_len"] == 512
    default = told(brimful(*LLAMA, *CARD, "--json"))
    assert default["job"]["weights_format"] == "bf16"


def test_what_does_not_fit_says_what_would(brimful):
    said = brimful(*LLAMA, *CARD, "--global-batch", "16", "--weights-format", "nf4")
    assert said.code == 1
    lines = said.out.splitlines()
    assert lines[0].startswith("NO ")
    assert "short by" in said.out
    assert "this text fits in no other format" in said.out
    assert "texts of this length at once" in " ".join(said.out.split())
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 80
    tables = brimful(*LLAMA, *CARD, "--global-batch", "16", "--weights-format", "nf4", "-v").out
    assert "Alive at the highest peak (predicted)" in tables
    assert max(map(len, tables.splitlines())) <= 100


def test_each_way_out_is_one(brimful):
    asked = {"--seq-len": 8192, "--global-batch": 16, "--weights-format": "nf4"}

    def run(**changes):
        flags = {**asked, **changes, "--gpus": "rtx-4090"}
        return brimful(*LLAMA, *(word for flag in flags.items() for word in flag), "--json")

    limits = json.loads(run().out)["limits"]
    assert run().code == 1
    assert run(**{"--seq-len": limits["seq_len"]}).code == 0
    assert run(**{"--global-batch": limits["num_sequences"]}).code == 0
    assert run(**{"--global-batch": limits["num_sequences"] + 1}).code == 1


@pytest.mark.torch
def test_a_forward_without_a_formula_is_simulated(brimful):
    asked = ("estimate", "gemma-2-2b", *TASK, "--gpus", "rtx-4090", "--seq-len", "512")
    said = brimful(*asked)
    assert said.code == 0
    assert said.out.startswith("FITS ")
    assert "GiB, simulated" in " ".join(said.out.split())
    assert "the forward of gemma2 has no formula: it is simulated" in said.err
    packed = brimful(*asked, "--weights-format", "int4")  # whose kernels are not here
    told = " ".join(packed.out.split())
    assert packed.code == 0
    assert "weights and cache alone" in told
    assert "more while it reads and writes, simulated in bf16" in told
    found = brimful("estimate", "gemma-2-2b", *TASK, "--gpus", "rtx-4090", "--json")
    assert json.loads(found.out)["fits"] is None
    too_large = brimful("estimate", "gemma-2-27b", *TASK, "--gpus", "rtx-4090")
    assert too_large.code == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((*TASK, "--method", "lora"), "--method lora has no meaning with --task inference"),
        ((*TASK, "--zero", "2"), "--zero 2 has no meaning with --task inference"),
        ((*TASK, "--precision", "bf16-mixed"), "bf16-mixed is a recipe of training"),
        ((*TASK, "--weights-format", "int3"), "unknown weights-format 'int3'"),
        ((*TASK, "--prompt-len", "9000", "--seq-len", "8192"), "prompt_len=9000 is more than"),
        ((*TASK, "--weights-format", "fp16", "--precision", "bf16"), "computes in fp16, not in"),
        (
            (*TASK, "--gpus", "8xh100-80gb", "--tp", 4),
            "--tp 4 with --task inference is for as many",
        ),
        (("--weights-format", "nf4"), "--weights-format nf4 belongs to --task inference"),
        (("--prompt-len", "5"), "--prompt-len 5 belongs to --task inference"),
    ],
)
def test_bad_input_is_one_sentence(brimful, argv, words):
    said = brimful("estimate", "llama-3.1-8b", *argv)
    assert said.code == 2
    assert said.out == "" or said.out.startswith("instead   the same ")
    assert words in said.err
    assert len(said.err.splitlines()) == 1


def test_verbs_that_train_refuse_it(brimful):
    said = brimful("shop", "llama-3.1-8b", *TASK, "--tokens", "1M")
    assert said.code == 2
    assert "trains nothing; brimful estimate and brimful simulate take it" in said.err


@pytest.mark.torch
def test_simulate_sets_both_rungs_side_by_side(brimful, folder):
    argv = ("simulate", "tiny.json", *TASK, "--gpus", "a100-40gb", "--seq-len", "256")
    found = told(brimful(*argv, "--json", "-o", "simulation.json"))
    assert (folder / "simulation.json").exists()
    predicted = found["predicted_peak_allocated_bytes"]
    assert found["simulated_peak_allocated_bytes"] == pytest.approx(predicted, rel=0.01)
    assert found["fits"] is True
    said = brimful(*argv)
    assert said.code == 0
    assert said.out.startswith("FITS ")
    assert "peak of prefill" in brimful(*argv, "-v").out
    assert max(map(len, said.out.splitlines())) <= 100


@pytest.mark.torch
@pytest.mark.usefixtures("folder")
def test_simulate_refuses_what_it_cannot_run(brimful):
    argv = ("simulate", "tiny.json", *TASK, "--gpus", "a100-40gb", "--weights-format", "int4")
    said = brimful(*argv)
    assert said.code == 2
    assert "predicted and not simulated by this version" in said.err


def test_sequences_that_are_read_by_themselves_are_more_and_each_is_counted(brimful):
    asked = ("estimate", "llama-3.1-8b", "--task", "inference", "--gpus", "rtx-4090")
    said = brimful(*asked, "--seq-len", 4096, "--json")
    content = json.loads(said.out)
    most = content["limits"]
    assert most["num_in_turn"] > most["num_sequences"] > 0
    held = {item["name"]: item["num_bytes"] for item in content["items"]}
    cache = held.pop("KV cache")
    left = content["usable_bytes"] - sum(held.values())
    assert most["num_in_turn"] == left // cache


def test_what_no_text_fits_on_names_the_smallest_gpu_that_it_does(brimful):
    asked = ("estimate", "qwen3-32b", "--task", "inference")
    said = brimful(*asked, "--gpus", "rtx-4090")
    found = re.search(r"instead   --gpus (\S+) would fit", said.out)
    assert (said.code, brimful(*asked, "--gpus", found[1]).code) == (1, 0)


def test_several_gpus_hold_a_model_together(brimful):
    asked = ("--gpus", "2xa100-80gb", "--seq-len", 4096)
    said = brimful("estimate", "llama-3.1-70b", *TASK, *asked)
    assert said.out.startswith("FITS ")
    assert re.search(r"per GPU +█+░* [\d.]+ GiB of [\d.]+ GiB, predicted, at most", said.out)
    found = json.loads(brimful("estimate", "llama-3.1-70b", *TASK, *asked, "--json").out)
    share = -(-found["packed_bytes"] // 2) + found["cache_bytes"] // 2
    assert found["least_bytes"] == pytest.approx(share, abs=1)
    assert found["packed_bytes"] == found["weights_bytes"] == pytest.approx(70.55e9 * 2, rel=0.01)
    assert found["least_bytes"] < found["most_bytes"] <= found["usable_bytes"]


def test_a_no_of_several_gpus_says_how_much_text_does_fit(brimful):
    ask = ("estimate", "llama-3.3-70b", *TASK, "--weights-format", "int4", "--gpus", "2xrtx-3090")
    said = brimful(*ask, "--seq-len", "32k")
    told = re.search(r"at most +([\d,]+) tokens a text, or (\d+) texts of ([\d,]+) at", said.out)
    longest, count, short = (int(word.replace(",", "")) for word in told.groups())
    cut = ("--prompt-len", 512)
    assert said.code == 1
    assert brimful(*ask, "--seq-len", longest, *cut).code == 0
    assert brimful(*ask, "--seq-len", longest + 1, *cut).code != 0
    assert brimful(*ask, "--seq-len", short, "--global-batch", count, *cut).code == 0
    assert brimful(*ask, "--seq-len", short, "--global-batch", count + 1, *cut).code != 0
    found = json.loads(brimful(*ask, "--seq-len", "32k", "--json").out)["most"]
    assert (found["seq_len"], found["num_sequences"]) == (longest, count)
    none = brimful("estimate", "llama-3.1-405b", *TASK, "--gpus", "2xh100-80gb")
    assert "no text fits in this format, however short" in none.out


def test_experts_count_as_packed_where_others_pack_them(brimful):
    """Of what this version leaves in 16 bits it says no NO that other checkpoints would not."""
    asked = ("estimate", "mixtral-8x7b", *TASK, "--weights-format", "nf4", "--seq-len", 1024)
    alone = brimful(*asked, "--gpus", "rtx-5090")
    assert (alone.code, alone.out.split()[0]) == (0, "FITS")
    assert "as published checkpoints are" in " ".join(alone.out.split())
    found = json.loads(brimful(*asked, "--gpus", "2xrtx-4090", "--json").out)
    assert found["packed_bytes"] == pytest.approx(46.7e9 * 0.56, rel=0.02)
    assert found["weights_bytes"] > 3 * found["packed_bytes"]
    few = brimful("estimate", "llama-3.1-405b", *TASK, "--gpus", "2xh100-80gb")
    assert (few.code, few.out.split()[0]) == (1, "NO")
    assert "needs 16 of these GPUs" in " ".join(few.out.split())


@pytest.mark.torch
def test_a_model_that_no_file_describes_is_read_once_and_simulated(brimful, folder):
    config = {**TINY_LLAMA, "model_type": "smollm3", "pad_token_id": 0}
    (folder / "other.json").write_text(json.dumps(config))
    asked = ("estimate", "other.json", "--task", "inference", "--gpus", "a10", "--seq-len", 32)
    first = brimful(*asked)
    told = " ".join(first.out.split())
    assert first.code == 0
    assert told.startswith("FITS")
    assert "the forward of smollm3 has no formula: it is simulated" in first.err
    assert "tokens of one text fit beside the weights" in told
    assert "reading" in first.err
    second = brimful(*asked)
    assert second.out == first.out
    assert "reading" not in second.err


def test_a_name_says_the_format_and_what_is_typed_wins(brimful):
    ask = ("estimate", "Qwen/Qwen3-14B-AWQ", *TASK, "--gpus", "rtx-4090", "--seq-len", 2048)
    said = brimful(*ask, "--json")
    assert json.loads(said.out)["job"]["weights_format"] == "int4"
    assert "--weights-format int4 is taken for 'awq' in the model's name" in said.err
    said = brimful(*ask, "--weights-format", "nf4", "--json")
    assert json.loads(said.out)["job"]["weights_format"] == "nf4"
    assert "in the model's name" not in said.err


def test_gpt_oss_is_answered_as_it_is_published(brimful):
    said = brimful("estimate", "openai/gpt-oss-20b", "--task", "inference", "--gpus", "rtx-4080")
    assert (said.code, said.out.split()[:4]) == (0, ["FITS", "gpt-oss-20b", "in", "mxfp4,"])
    assert "mxfp4, as gpt-oss-20b is published" in said.out
    assert len(said.out.splitlines()) <= 13
    assert (
        "in bf16"
        in brimful("estimate", "gpt-oss-20b", "--task", "inference", "--gpus", "v100-32gb").out
    )


def test_a_cache_with_windows_says_what_it_lets_go_of(brimful):
    """As published pages of a window are given back while a prompt is read; else behind it."""
    asked = ("estimate", "gpt-oss-120b", *TASK, "--seq-len", "16k", "--global-batch", 16)
    asked += ("--gpus", "h100-80gb")
    served, whole = (
        " ".join(brimful(*asked, "--weights-format", kind).out.split())
        for kind in ("mxfp4", "int8")
    )
    (held,) = re.findall(r"KV cache ([\d.]+ GiB)", served)
    assert f"cache of whole prompts while they are read; {held} from the next token on" in whole
    assert "from the next token on" not in served


def test_a_small_lora_of_gpt_oss_says_what_is_trained_on(brimful):
    said = brimful("plan", "openai/gpt-oss-120b", "--gpus", "h100", "--method", "lora")
    assert "mxfp4     as published is for writing; transformers trains on bf16" in said.out


def test_fp8_of_a_checkpoint_is_taken_for_a_format_of_as_many_bits(brimful):
    said = brimful(*LLAMA, *CARD, "--weights-format", "fp8")
    assert "--weights-format int8 is taken for 'fp8': as many bits a weight" in said.err
    assert "in int8" in said.out


def test_what_fits_with_prompts_in_chunks_is_said(brimful):
    asked = (
        "estimate", "qwen3-32b", "--task", "inference", "--gpus", "rtx-4090", "--seq-len", "16k",
        "--global-batch", 1, "--weights-format",
    )  # fmt: skip
    said = " ".join(brimful(*asked, "nf4").out.split())
    found = re.search(r"nf4-double ([\d.]+ GiB) \(1 text\)", said)
    assert "this text fits with its prompt in chunks (--prompt-len 512)" in said
    assert found is not None
    alone, chunked = re.findall(r"([\d,]+) tokens each", said)
    assert int(alone.replace(",", "")) < int(chunked.replace(",", ""))
    told = " ".join(brimful(*asked, "nf4-double", "--prompt-len", 512).out.split())
    assert told.startswith("FITS")
    assert f"{found[1]} of" in told
    assert "in chunks" not in told
