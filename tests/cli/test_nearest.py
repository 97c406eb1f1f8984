"""A refusal answers the nearest question: in one sentence, and then what can be answered."""

import json
import re

import pytest

from brimful.cli import bound
from brimful.cli.main import parser_of
from brimful.cost.least import least_bytes, least_on_device, spread_of
from brimful.errors import LESS
from brimful.models.config import load_model
from brimful.models.names import nearest_by_name
from brimful.show.bound import bound_summary
from brimful.show.stand_in import StandIn, judged, standing_in
from brimful.show.summary import Meter, Summary
from brimful.units import format_bytes
from samples import TINY_LLAMA, make_job

H100 = ("--gpus", "h100-80gb")


def test_a_sequence_that_is_too_long_keeps_its_length_where_positions_can_be_scaled(brimful):
    asked = ("phi-3-mini", "--gpus", "rtx-4070-ti", "--method", "qlora", "--seq-len", 8192)
    said = brimful("plan", *asked, "--no-proof")
    assert said.code == 2
    assert said.err.splitlines()[0].startswith("brimful: seq_len=8192 is longer")
    head, answer = said.out[: said.out.index("FITS")], said.out[said.out.index("FITS") :]
    assert " ".join(head.split()) == (
        "instead the same with --max-positions 8192 (as YaRN scales them: it has learnt fewer; as "
        "large, and longer: phi-3.5-mini, phi-4-mini, phi-4-mini-reasoning):"
    )
    assert answer == brimful("plan", *asked, "--max-positions", 8192, "--no-proof").out
    assert "at 8,192 tokens" in answer


def test_a_table_of_positions_is_answered_at_its_end(brimful):
    said = brimful("estimate", "gpt2", *H100, "--seq-len", 2048)
    assert said.out.startswith("instead   the same with --seq-len 1024:\nFITS ")
    said = brimful("estimate", "gpt2", *H100, "--seq-len", 2048, "--max-positions", 2048)
    assert "no rotary positions" in said.err
    assert said.code == 2


def test_fewer_positions_than_a_model_has_change_nothing(brimful):
    asked = ("estimate", "phi-3-mini", *H100)
    said = brimful(*asked, "--max-positions", 100)
    assert "--max-positions 100 changes nothing: phi-3-mini" in said.err
    assert said.out == brimful(*asked).out


def test_room_is_left_for_rollouts(brimful):
    """What writes texts, their cache and a reference model, counted from the model's own sizes."""
    asked = ("qwen2.5-0.5b", *H100, "--task", "grpo", "--seq-len", 1024, "--global-batch", 8)
    said = brimful("estimate", *asked)
    told = " ".join(said.out.split())
    weights, cache = 494_032_768 * 2 / 2**20, 24 * 2 * 128 * 8 * 1024 * 2 / 2**20
    assert f"weights that write the texts {weights:.2f} MiB" in told
    assert f"KV cache of 8 x 1,024 tokens {cache:.2f} MiB" in told
    assert "the same with --task causal-lm --memory-limit" in told
    limit = brimful("estimate", *asked, "--memory-limit", "20GiB")
    assert "--memory-limit" not in limit.out, "who gave a limit has left room already"


def test_what_a_peak_leaves_is_held_against_what_comes_on_top(brimful):
    """Beside a limit of the asker's too, of which what comes on top is no share."""
    asked = ("estimate", "smollm2-135m", "--gpus", "t4", "--task", "grpo", "--seq-len", 512)
    for more in ((), ("--memory-limit", "50%")):
        told = " ".join(brimful(*asked, *more).out.split())
        peak = float(re.search(r"([\d.]+) GiB of [\d.]+ GiB, predicted", told)[1])
        left = re.search(r"left ([\d.]+) GiB of ([\d.]+) GiB for what comes on top", told)
        assert float(left[2]) - peak == pytest.approx(float(left[1]), abs=0.02)
        assert float(left[2]) > 14, "the card, not the limit"


@pytest.mark.parametrize(("on_top", "verdict"), [(40, "FITS"), (41, "NO")])
def test_what_leaves_no_room_for_what_comes_on_top_is_a_no(on_top, verdict):
    """It was said to fit beside a limit of the asker's, and to be short by so much below."""
    told = Summary("FITS", "its update", Meter(60, 80, "predicted"), ())
    with standing_in(StandIn("--task causal-lm", LESS, on_top, 100)):
        judgement = judged(told)
    assert judgement.verdict == verdict
    assert (", short by" in judgement.facts[0].text) is (verdict == "NO")


def test_room_is_left_for_images_of_a_family_that_is_called_for_it(brimful, folder):
    """By its name, and by a configuration whose language part is a known model's."""
    flags = ("--gpus", "l4", "--method", "qlora", "--seq-len", 512)
    said = brimful("estimate", "llava-hf/llava-1.5-7b-hf", *flags)
    assert "model vicuna-7b --memory-limit" in said.out
    assert "left for the encoder and its images" in " ".join(said.out.split())
    part = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
            "intermediate_size": 11008, "num_attention_heads": 32}  # fmt: skip
    config = {"model_type": "llava", "text_config": part, "vision_config": {"hidden_size": 1024}}
    (folder / "config.json").write_text(json.dumps(config))
    said = brimful("estimate", "config.json", *flags)
    assert "its language part has the sizes of llama-2-7b" in said.err
    assert "left for the encoder and its images" in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("task", "has_reward", "has_critic"),
    [("grpo", False, False), ("rloo", True, False), ("ppo", True, True), ("rlhf", True, True)],
)
@pytest.mark.parametrize("num", [1, 8])
def test_room_is_left_for_a_critic_and_a_reward_model(brimful, task, has_reward, has_critic, num):
    """By hand: 16 bytes for each parameter of the critic, 2 of the reward model, over all GPUs."""
    gpus = f"{num}xh100-80gb"
    ask = ("qwen2.5-0.5b", "--gpus", gpus, "--seq-len", 512, "--global-batch", 8, "--task", task)
    told = " ".join(brimful("estimate", *ask).out.split())
    reward, critic = (format_bytes(-(-494_032_768 * each // num)) for each in (2, 16))
    assert (f"reward model {reward}" in told) is has_reward
    assert (f"critic with its optimizer {critic}" in told) is has_critic
    assert told.startswith("instead the same with --task causal-lm --memory-limit")
    assert told.index("on top") < told.index("FITS")


def test_room_is_left_for_images(brimful):
    said = brimful("estimate", "Qwen/Qwen2-VL-7B-Instruct", "--gpus", "l4", "--method", "lora")
    assert "model qwen2-7b --memory-limit" in said.out
    assert "left for the encoder and its images" in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("name", "near"),
    [("nobody/NewThing-13B-Chat", "llama-2-13b"), ("nobody/Else-30B-A3B", "qwen3-30b-a3b")],
)
def test_a_name_that_nobody_knows_is_answered_by_its_size(brimful, name, near):
    said = brimful("estimate", name, "--gpus", "8xh100-80gb")
    assert said.code == 2
    assert f"{near}:" in said.out.splitlines()[0]
    assert "by its name" in said.err


def test_several_refusals_are_answered_around(brimful, folder):
    said = brimful("estimate", "llama-3.2-1b", *H100, "--seq-len", 1000000, "--tp", 7, "--zero", 0)
    assert said.code == 2
    # The degrees do not make one device, and nobody knows which should go: the states are told.
    assert said.out.startswith("UNKNOWN")
    wide = ("--gpus", "4xh100-80gb", "--method", "qlora", "--base", "llm-int8", "--zero", 3)
    (folder / "small.json").write_text(json.dumps({**TINY_LLAMA, "hidden_size": 64}))
    said = brimful("estimate", "small.json", *wide, "--seq-len", 1000000)
    assert "--max-positions 1000000 --zero 0 without --dp-shard" in " ".join(said.out.split())


def test_context_parallel_is_answered_without_it(brimful):
    asked = ("qwen3-0.6b", "--gpus", "8xh100-80gb", "--seq-len", 32768, "--global-batch", 8)
    said = brimful("plan", *asked, "--cp", 8, "--pp", 1, "--loss-chunks", 1, "--no-proof")
    assert said.code == 2
    assert "--cp 8 (context parallel) is not run" in said.err
    assert said.out.startswith("instead   the same without --cp:\nFITS ")


def test_a_strategy_for_more_gpus_is_answered_on_as_many(brimful):
    said = brimful("estimate", "llama-3.2-1b", *H100, "--tp", 2)
    assert said.code == 2
    assert said.out.startswith("instead   the same with --gpus 2xh100-80gb:\nFITS ")
    fewer = brimful("estimate", "llama-3.2-1b", "--gpus", "8xh100-80gb", "--zero", 0, "--tp", 3)
    assert fewer.code == 2
    assert fewer.out.startswith("instead   the same with --tp 2:\nFITS ")
    assert "tp=3 x pp=1 does not divide 8 devices" in fewer.err


def test_json_holds_what_was_asked_or_nothing(brimful):
    said = brimful("estimate", "phi-3-mini", *H100, "--seq-len", 8192, "--json")
    assert (said.code, said.out) == (2, "")


def test_what_is_written_is_what_was_asked_for(brimful, folder):
    said = brimful(
        "plan", "phi-3-mini", *H100, "--seq-len", 8192, "--method", "lora", "--no-proof",
        "-o", "plan.yaml",
    )  # fmt: skip
    assert said.code == 2
    assert "instead" in said.out
    assert not (folder / "plan.yaml").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ("llama-2-13b", "--gpus", "16xmi100"),
            "per GPU ████████░░░░░░░░░░░░ 12.12 GiB of 31.36 GiB, at least",
        ),
    ],
)
def test_without_a_formula_the_states_are_a_bound(brimful, argv, words):
    said = brimful("estimate", *argv)
    assert said.code == 2
    assert " ".join(said.out.split()).count(words) == 1
    assert said.out.startswith("NO" if "short" in words else "UNKNOWN")
    assert "FITS  " not in said.out
    assert len(said.out.splitlines()) <= 12


def test_beside_kernels_that_are_unknown_stand_cuda_s_on_as_much_memory(brimful):
    asked = ("llama-3.1-8b", "--method", "lora", "--seq-len", 2048, "--micro-batch", 1)
    said = brimful("estimate", *asked, "--gpus", "mi100")
    ours = brimful("estimate", *asked, "--gpus", "rtx-5090").out.splitlines()[1].split()
    told = " ".join(said.out.split())
    assert said.code == 2
    found = re.search(r"alike llama-3.1-8b, by CUDA's kernels .*, takes ([\d.]+) GiB of 30", told)
    assert float(found[1]) == pytest.approx(float(ours[2]), rel=0.01)


def test_another_engine_is_laid_beside_torch(brimful):
    asked = ("llama-3.1-8b", "--gpus", "8xa100-80gb", "--zero", 3)
    said = brimful("estimate", *asked, "--engine", "deepspeed", "--precision", "bf16-mixed")
    ours = brimful("estimate", *asked).out.splitlines()[1].split()
    assert said.code == 2
    assert f"alike     llama-3.1-8b takes {ours[3]} GiB" in said.out


def test_what_leads_nowhere_is_refused_as_ever(brimful):
    said = brimful("estimate", "llama-3.1-8b", *H100, "--learning-rate", -1)
    assert (said.code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 1


def test_a_market_without_a_formula_is_bounded(brimful):
    asked = ("shop", "llama-3.2-1b", "--seq-len", 512, "--method", "qat")
    said = brimful(*asked, "--tokens", "100M", "--kinds", "l4,h100")
    assert said.code == 2
    assert said.out.startswith("UNKNOWN   QAT")
    assert "at least  " in said.out
    dear = brimful(*asked, "--tokens", "100T", "--kinds", "l4", "--money-budget", "5usd")
    assert dear.out.startswith("NO ")
    assert len(said.out.splitlines()) <= 12


def test_inference_has_nothing_to_search_and_is_estimated(brimful):
    said = brimful("plan", "llama-3.1-8b", "--gpus", "l4", "--task", "inference")
    assert said.code == 0
    assert "this is brimful estimate" in said.err
    assert said.out.startswith("FITS      llama-3.1-8b")


def test_eager_attention_of_shards_has_a_formula(brimful):
    """Gemma 2's written-out attention under ZeRO-3 was simulated for a minute, though DDP fits."""
    asked = ("--gpus", "2xt4", "--method", "lora", "--precision", "fp16-mixed", "--no-proof")
    pinned = ("--micro-batch", 1, "--loss-chunks", 8, "--pp", 1)  # so that the search is short
    said = brimful("plan", "gemma-2-2b", *asked, "--seq-len", 1024, "--global-batch", 16, *pinned)
    assert said.code == 0
    assert "predicted" in said.out
    assert "simulat" not in said.err


def test_targets_that_a_model_lacks_are_answered_by_the_layers_in_their_place(brimful):
    asked = ("phi-3-mini", *H100, "--method", "lora", "--seq-len", 512)
    said = brimful("estimate", *asked, "--lora-targets", "o_proj,gate_proj")
    assert said.code == 2
    assert "has no linear layer gate_proj, but gate_up_proj in their place" in said.err
    assert said.out.startswith("instead   the same with --lora-targets o_proj,gate_up_proj:")


def test_gpus_of_which_nothing_is_known_are_left_out_of_a_market(brimful):
    asked = ("gpt2", "--tokens", "10M", "--max-gpus", 1, "--seq-len", 128, "--global-batch", 8)
    said = brimful("shop", *asked, "--kinds", "mi100,l4")
    assert said.code == 2
    assert "mi100 is gfx908" in said.err
    assert "instead   the same with --kinds l4:\nANSWER " in said.out
    assert brimful("shop", *asked, "--kinds", "mi100").code == 2


def test_both_batches_say_how_many_texts_are_there(brimful):
    asked = ("gpt2", *H100, "--task", "inference", "--seq-len", 256)
    one = brimful("estimate", *asked, "--micro-batch", 4).out
    assert one == brimful("estimate", *asked, "--global-batch", 4).out
    assert "4 x 256 tokens of text" in one
    both = brimful("estimate", *asked, "--global-batch", 4, "--micro-batch", 2)
    assert both.code == 2
    assert "both say how many texts" in both.err


def test_deepspeeds_fp16_has_master_weights(brimful):
    said = brimful(
        "estimate", "llama-3.2-1b", "--gpus", "2xa100-40gb", "--engine", "deepspeed", "--zero", 3,
        "--precision", "fp16-mixed", "--seq-len", 1024,
    )  # fmt: skip
    assert said.code == 2
    assert said.out.startswith("instead   the same with --precision fp16-master:")


def test_early_updates_of_several_gpus_are_answered_without(brimful):
    """Gradients of 16 bits, 2 B a parameter, over 8 GPUs are the most that they would save."""
    fused = ("--optimizer", "sgd", "--optimizer-in-backward", "--clip", 0, "--precision", "bf16")
    said = brimful("estimate", "smollm2-135m", "--gpus", "8xl4", *fused, "--seq-len", 256)
    assert said.code == 2
    told = " ".join(said.out.split())
    assert told.startswith("instead the same without --optimizer-in-backward:")
    each = 134_515_008 * 2 / 8 / 2**20
    assert f"keeps no gradients, which are {each:.2f} MiB of each GPU" in told


def test_a_gpu_that_is_not_modelled_is_answered_on_one_as_large(brimful):
    said = brimful("estimate", "smollm2-135m", "--gpus", "gaudi-3", "--seq-len", 256)
    assert said.code == 2
    assert "dgx-spark stands in, with 128 GB" in said.err
    assert said.out.startswith("instead   the same with --gpus dgx-spark --card-memory 128GB:")


def test_gb_of_a_card_are_those_of_its_label(brimful):
    asked = ("estimate", "smollm2-135m", "--gpus", "rtx-4090", "--seq-len", 256, "--card-memory")
    label, exact = (" ".join(brimful(*asked, size).out.split()) for size in ("48GB", "48GiB"))
    assert "48GB as on a label: 48 GiB, 47.04 GiB of it for programs" in label
    assert "as on a label" not in exact
    assert "with 47.04 GiB" in label
    assert "with 48.00 GiB" in exact
    assert brimful(*asked, "24GB").out.splitlines()[1] == brimful(*asked[:-1]).out.splitlines()[1]


def test_a_card_told_smaller_computes_as_a_whole_one_and_the_slice_is_named(brimful):
    """A slice of an A100 was asked about by its memory, and its hours were of the whole card."""
    asked = ("estimate", "smollm2-135m", "--gpus", "a100-80gb", "--seq-len", 256, "--card-memory")
    told = " ".join(brimful(*asked, "40GB").out.split())
    assert (
        "computing as the whole card does; a slice is slower: --gpus a100-80gb-mig-3g.40gb" in told
    )


def test_the_slots_between_cards_are_named(brimful):
    """Whether four cards on risers are worth it hangs on that alone, and nothing named it."""
    asked = ("estimate", "smollm2-135m", "--seq-len", 256, "--gpus")
    told = " ".join(brimful(*asked, "2xrtx-3060").out.split())
    assert "pcie-4x16 between GPUs (fewer lanes are slower)" in told
    assert "between GPUs" not in brimful(*asked, "rtx-3060").out


def test_what_firmware_sets_aside_is_not_cut_again(brimful):
    """Of 96 GB for the graphics 76 were left, by the share of a whole machine."""
    asked = ("estimate", "smollm2-135m", "--gpus", "strix-halo", "--seq-len", 256, "--card-memory")
    told = " ".join(brimful(*asked, "96GB").out.split())
    assert "96GB as set aside for the GPU: 96.00 GiB, all of it for programs" in told
    assert "GTT" not in told


def test_more_devices_for_one_model_than_there_are_become_as_many_as_there_are(brimful):
    """Sixteen H100 were answered to who has eight."""
    asked = ("--gpus", "8xh100-80gb", "--tp", 16, "--zero", 3, "--seq-len", 256)
    said = brimful("estimate", "llama-3.1-8b", *asked, "--global-batch", 8)
    assert said.code == 2
    assert "on 8 x H100" in said.out


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("state-spaces/mamba2-2.7b", "its blocks are of another kind than those of gpt3-2.7b"),
        ("nobody/OtherThing-2.7B", "gpt3-2.7b stands in, and takes texts of 2048 tokens at most"),
    ],
)
def test_what_is_unlike_gets_no_verdict_of_another(brimful, name, why):
    """A state-space model, or a text that the stand-in cannot read: FITS would be of neither."""
    said = brimful("estimate", name, *H100, "--seq-len", 8192, "--optimizer", "sgd")
    told = " ".join(said.out.split())
    assert said.code == 2
    assert f"unknown what {name} takes: {why}" in told
    assert "UNKNOWN full training of gpt3-2.7b" in told
    assert "of 2.65B parameters" in told
    assert "FITS  " not in said.out


def test_what_an_engine_cannot_hold_is_told_with_ways_out_on_the_same_gpus(brimful):
    said = brimful(
        "estimate", "vicuna-13b", "--gpus", "8xa100-40gb", "--engine", "deepspeed", "--zero", 2,
        "--precision", "bf16-master", "--micro-batch", 4, "--global-batch", 128, "--ac", "full",
        "--seq-len", 2048,
    )  # fmt: skip
    assert said.out.startswith("NO ")
    told = " ".join(said.out.split())
    assert "would fit --micro-batch 1 --zero 0 --dp-shard 1 --tp 8 --engine torch" in told
    assert "or with DeepSpeed ZeRO-3 over 8 GPUs: 32.54 GiB" in told


def test_masters_that_zero_1_shards_have_a_prediction(brimful):
    """Megatron's and nanotron's recipe: ZeRO-3 would shard the weights and gradients too."""
    asked = ("estimate", "smollm2-135m", "--gpus", "8xh100-80gb", "--zero", 1, "--seq-len", 512)
    for beside in ((), ("--method", "lora")):
        said = brimful(*asked, "--precision", "bf16-master", *beside)
        assert said.out.startswith("FITS "), said.err
        assert "settings ZeRO-1 over 8 GPUs" in " ".join(said.out.split())


def test_states_that_have_no_room_whole_name_the_stage_that_shards_them(brimful):
    said = brimful(
        "estimate", "gpt-j-6b", "--gpus", "8xrtx-a6000", "--zero", 1, "--global-batch", 64
    )
    assert said.out.startswith("NO ")
    assert "or with --zero 3 holds" in " ".join(said.out.split())


def test_more_and_less_are_the_differences_of_the_totals_beside_them(brimful):
    asked = ("estimate", "smollm2-135m", "--gpus", "8xa100-40gb", "--seq-len", 2048, "--zero")
    third, second = (" ".join(brimful(*asked, zero).out.split()) for zero in (3, 2))
    sizes = [float(re.search(r"([\d.]+) GiB of", text)[1]) for text in (third, second)]
    more = re.search(r"ZeRO-2 ([\d.]+) (MiB|GiB) more", third)
    differs = float(more[1]) / (1024 if more[2] == "MiB" else 1)
    assert differs == pytest.approx(sizes[1] - sizes[0], abs=0.011)
    assert f"ZeRO-3 {more[1]} {more[2]} less" in second


def test_a_step_that_takes_more_than_its_smaller_state_saves_says_so(brimful):
    """torchao's 4-bit AdamW holds fp32 copies of the largest matrix, here 256,000 rows."""
    asked = ("estimate", "salamandra-2b", "--gpus", "a100-80gb", "--ac", "full", "--optimizer")
    four, eight = (" ".join(brimful(*asked, f"adamw-{bits}bit").out.split()) for bits in (4, 8))
    assert "step adamw-4bit keeps 2.23 GiB, and its step holds 11.75 GiB more" in four
    assert "adamw-8bit keeps 4.26 GiB" in four
    assert "step adamw-" not in eight


def test_a_quantised_base_says_that_stacks_of_experts_are_not(brimful):
    asked = ("estimate", "qwen3-30b-a3b", *H100, "--seq-len", 512, "--method")
    quantised, half = (
        " ".join(brimful(*asked, method).out.split()) for method in ("qlora", "lora")
    )
    stacks = 48 * 128 * 3 * 2048 * 768 * 2 / 2**30
    assert f"experts stay in 16 bits, {stacks:.2f} GiB of all together" in quantised
    assert "stay in 16 bits" not in half
    dense = brimful("estimate", "smollm2-135m", *H100, "--seq-len", 512, "--method", "qlora")
    assert "stay in 16 bits" not in dense.out


def test_gradients_that_are_dropped_as_they_come_are_not_among_the_least():
    asked = ["qwen3-4b", "--gpus", "rtx-4090", "--optimizer-in-backward", "--clip", "0"]
    known = bound._bounded(bound.with_all_flags(parser_of("plan").parse_args(asked)))
    assert known.least.gradients == 0 < known.least.parameters


def test_states_are_counted_on_a_slice_too(brimful):
    asked = ("llama-3.1-8b", "--gpus", "a100-mig-1g.10gb", "--engine", "deepspeed", "--zero", 3)
    said = brimful("estimate", *asked, "--precision", "bf16-mixed")
    assert said.code == 2
    assert said.out.startswith("NO ")
    assert "A100 SXM 80GB, MIG 1g.10gb" in " ".join(said.out.split())


STABLE = {
    "model_type": "stablelm", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256,
    "max_position_embeddings": 128,
}  # fmt: skip


@pytest.mark.torch
def test_preferences_of_a_model_that_is_traced_here_have_an_answer(brimful, folder):
    """Nobody traced its reference's forward pass, and the replay ended in 'make one with'."""
    (folder / "stable.json").write_text(json.dumps(STABLE))
    asked = ("stable.json", *H100, "--task", "dpo", "--method", "lora", "--seq-len", 64)
    said = brimful("estimate", *asked, "--lora-targets", "q_proj,v_proj")
    assert said.code == 0
    assert said.out.startswith("FITS      DPO, LoRA")


def test_a_stand_in_says_no_speed_and_computes_in_bf16(brimful):
    said = brimful("plan", "llama-3.2-1b", "--gpus", "m4-max-64gb", "--method", "lora")
    assert said.code == 2
    assert "a40 stands in" in said.err
    assert "bf16-mixed" in said.out
    assert "FITS" in said.out
    for word in ("tokens/s", "USD", "MFU", "days", "slower", "brimful train"):
        assert word not in said.out, word
    assert "a billion tokens" not in said.err
    assert "tokens/s" not in said.err  # of what is yet to be proven
    after = brimful("estimate", "llama-3.2-1b", "--gpus", "a40", "--method", "lora")
    assert "tokens/s" in after.out  # nothing stays hidden


def test_memory_beside_a_machine_of_several_sizes_is_the_machines(brimful):
    asked = ("llama-3.2-1b", "--method", "lora")
    said = brimful("estimate", *asked, "--gpus", "M4 Max", "--card-memory", "64GB")
    named = brimful("estimate", *asked, "--gpus", "m4-max-64gb")
    assert "a40 stands in, with 48 GB (macOS keeps the rest of 64)" in " ".join(said.err.split())
    assert (said.code, said.out) == (named.code, named.out)


def test_an_optimizer_of_a_file_that_is_not_run_is_answered_by_the_nearest(brimful, folder):
    told = {"per_device_train_batch_size": 1, "output_dir": "o", "optim": "paged_lion_8bit"}
    (folder / "args.json").write_text(json.dumps(told))
    asked = ("smollm2-135m", "--from", "args.json", *H100, "--seq-len", 256, "--no-proof")
    said = brimful("plan", *asked)
    assert said.code == 2
    assert "--optimizer paged-lion-8bit (one number a parameter in 8 bits" in said.err
    assert "instead   the same with --optimizer paged-adamw-8bit:" in said.out
    assert "FITS" in said.out


def test_a_line_without_flags_of_a_trainer_is_no_file(brimful):
    said = brimful("plan", "--from", "python mine.py --width 8", *H100)
    assert said.code == 2
    assert "brimful pretend -- mine.py runs it as it is" in said.err


def test_a_flag_of_megatron_without_a_formula_is_left_out_of_what_is_answered(brimful):
    line = (
        "pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 --bf16 "
        "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --vocab-size 9000 "
        "--global-batch-size 8 --enable-cuda-graph"
    )
    said = brimful("estimate", *H100, "--from", line)
    assert said.code == 2
    assert said.out.startswith("instead   the same without --enable-cuda-graph:\nFITS")


def test_a_limit_that_is_a_part_is_of_whatever_card(brimful):
    asked = ("llama-3.2-1b", "--seq-len", 512, "--micro-batch", 1, "--global-batch", 1, "--json")
    for gpu in ("a100-40gb", "h100-80gb"):
        whole, half = (
            json.loads(brimful("estimate", *asked, "--gpus", gpu, *limit).out)
            for limit in ((), ("--memory-limit", "50%"))
        )
        usable = whole["cluster"]["device"]["usable_bytes"]
        assert half["cluster"]["memory_limit_bytes"] == int(0.5 * usable)


@pytest.mark.parametrize(
    ("name", "method", "words"),
    [
        ("TheBloke/Mistral-7B-Instruct-v0.2-GPTQ", "lora", "--base nf4-double is taken for 'gptq'"),
        ("unsloth/Meta-Llama-3.1-8B-bnb-4bit", "qlora", ""),
        ("TheBloke/Llama-2-7B-AWQ", "full", "'awq' in the model's name is for running"),
        ("Qwen/Qwen3-8B-FP8", "lora", ""),
    ],
)
def test_an_upload_in_few_bits_is_the_base_of_adapters(brimful, name, method, words):
    asked = ("--gpus", "a100-80gb", "--method", method, "--seq-len", 512)
    said = brimful("estimate", name, *asked, "--json")
    job = json.loads(said.out)["job"]
    packed = "gptq" in name.lower() or "4bit" in name
    assert job["method"] == ("qlora" if packed else method)
    assert words in said.err
    assert bool(words) == ("in the model's name" in said.err)


def test_a_clouds_machine_has_the_clouds_price_or_is_said_to_have_another(brimful, tmp_path):
    for machine in ("p4d.24xlarge", "2xp4d.24xlarge"):
        said = brimful("estimate", "gpt2", "--gpus", machine)
        assert "(2.74 a GPU-hour, AWS's list, us-east-1, 2026-11-09)" in " ".join(said.out.split())
        assert "prices are not" not in said.err
    assert "prices are not AWS's" in brimful("estimate", "gpt2", "--gpus", "p5e.48xlarge").err
    assert "prices are not" not in brimful("estimate", "gpt2", "--gpus", "8xh100").err
    own = tmp_path / "own.yaml"
    own.write_text("a100-40gb: 1.5\n", "utf-8")
    said = brimful("estimate", "gpt2", "--gpus", "p4d.24xlarge", "--prices", str(own))
    assert "(1.50 a GPU-hour)" in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("llama-3.1-9b", "llama-3.1-8b"),  # and no tune, whose vocabulary is larger by some words
        ("llama-3.2-2b", "llama-3.2-3b"),  # and no guard, though that is nearer in size
    ],
)
def test_of_a_family_what_is_called_as_plainly_is_meant(name, near):
    assert nearest_by_name(name, frozenset())[0] == near


def test_a_schedule_that_shards_cannot_run_is_answered_by_1f1b_on_all_gpus(brimful):
    gpus, batch = ("--gpus", "2x4xh100-80gb"), ("--micro-batch", 1, "--global-batch", 16)
    flags = (*gpus, *batch, "--ac", "full", "--pp", 4, "--zero", 1, "--precision", "bf16")
    said = brimful("estimate", "qwen3-8b", *flags, "--pp-schedule", "zbv")
    assert said.code == 2
    assert said.out.startswith("instead   the same with --pp-schedule 1f1b ")
    assert "on 8 x H100" in said.out
    told = brimful("estimate", "qwen3-8b", *flags, "--pp-schedule", "1f1b").out
    assert said.out.endswith(told[told.index("per GPU") :])


def test_a_bound_of_bytes_knows_the_stages_of_a_pipeline():
    job = make_job(precision="bf16")
    least = least_bytes(job, 1000)
    spread = spread_of(16, 1, replicas=1, offload="", cut=4)
    each = least_on_device(least, spread)
    assert each.parameters == -(-least.parameters // 4)
    assert each.gradients == -(-least.gradients // 4)
    assert each.optimizer_state == -(-least.optimizer_state // 16)
    flags = [
        "qwen3-32b",
        "--gpus",
        "2x8xh100-80gb",
        "--precision",
        "bf16",
        "--pp",
        "4",
        "--zero",
        "1",
    ]
    args = parser_of("estimate").parse_args(flags)
    known = bound.bounded_of(args, load_model("qwen3-32b"), 1000)
    assert known.spread == spread
    text = bound_summary(known, ()).facts[0].text
    assert text.endswith(", cut over 4 GPUs, sharded as by ZeRO-1")
