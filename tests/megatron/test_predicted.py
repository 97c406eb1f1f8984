"""Megatron-LM's processes by formula: against its code on the pretend GPU, and published runs."""

import json
import re
import statistics
from pathlib import Path

import numpy as np
import pytest

from brimful.cli.main import main
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.gpus import load_cluster
from brimful.megatron import by_layer, speed, stage
from brimful.megatron.command_line import read_layout
from brimful.megatron.speed import Overlaps, device_flops, sequence_flops, slowest_step_s
from brimful.programs.base import flags_of
from brimful.programs.formulas import Machines, predict_program
from brimful.published.compare import compare
from brimful.published.rows import published_runs

ROWS = json.loads(Path(__file__).with_name("simulated.json").read_text("utf-8"))["rows"]
PLAIN = (
    "pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 --bf16 "
    "--vocab-size 50257 --use-distributed-optimizer"
)
EIGHT = load_cluster("8xh100-80gb", memory_limit_bytes=None)
NOTHING = Overlaps(replicas=False)


def predict(line, world=8):
    return predict_program(line, world, Machines("h100"))


def peak(line, world=8):
    return max(rank.predicted_peak_allocated_bytes for rank in predict(line, world).ranks)


def errors():
    for row in ROWS:
        found = predict(row["command"], row["world_size"])
        for rank in found.ranks:
            if str(rank.rank) in row["ranks"]:
                allocated, _ = row["ranks"][str(rank.rank)]
                yield row["case"], rank.predicted_peak_allocated_bytes / allocated - 1


def test_predicted_peaks_are_the_simulated_ones():
    found = list(errors())
    assert len(found) == 53
    far = {case for case, error in found if abs(error) >= 0.01}
    assert statistics.median(abs(error) for _, error in found) < 0.0025
    assert all(abs(error) < 0.025 for _, error in found)
    assert len(far) == 3  # BERT's loss, experts under context parallel and in halves


def test_published_runs_are_predicted():
    rows = [compare(run) for run in published_runs("simumax") if run.command]
    assert len(rows) >= 12
    found = {row.id: row.predicted_allocated_gib / row.published_allocated_gib - 1 for row in rows}
    assert statistics.median(map(abs, found.values())) < 0.0005
    assert all(abs(error) < 0.002 for error in found.values())
    reserved = [row.likely_reserved_gib / row.published_reserved_gib - 1 for row in rows]
    assert all(abs(error) < 0.04 for error in reserved)


@pytest.mark.parametrize(
    "more",
    [
        "",
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1",
        "--attention-backend unfused --position-embedding-type rope",
        "--recompute-granularity full --swiglu --tensor-model-parallel-size 2",
        "--num-experts 8 --expert-model-parallel-size 4 --moe-token-dispatcher-type alltoall",
        "--num-experts 8 --expert-model-parallel-size 4 --moe-shared-expert-intermediate-size 64",
    ],
)
def test_nothing_of_a_micro_batch_outlives_it(monkeypatch, more):
    asked = []
    replay = stage.replay
    monkeypatch.setattr(stage, "replay", lambda it, **how: asked.append(it) or replay(it, **how))
    line = f"{PLAIN} {more}"
    predict(line)
    predict(line.replace("--global-batch-size 64", "--global-batch-size 128"))
    left = [_alive_at_the_end(requests) for requests in asked]
    half = len(left) // 2
    assert left[:half] == left[half:]


def _alive_at_the_end(requests):
    signs = np.where(requests.events >= 0, 1, -1)
    rows = np.where(requests.events >= 0, requests.events, ~requests.events)
    return int((signs * requests.num_bytes[rows]).sum())


@pytest.mark.parametrize(
    ("more", "is_less"),
    [
        ("--tensor-model-parallel-size 2", True),
        ("--tensor-model-parallel-size 2 --sequence-parallel", True),
        ("--pipeline-model-parallel-size 4", True),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", True),
        ("--attention-backend unfused", False),
        ("--num-experts 8 --expert-model-parallel-size 2", False),
    ],
)
def test_each_switch_moves_the_peak_as_it_should(more, is_less):
    assert (peak(f"{PLAIN} {more}") < peak(PLAIN)) == is_less


def test_selective_recompute_spares_scores():
    plain = f"{PLAIN} --attention-backend unfused"
    assert peak(f"{plain} --recompute-granularity selective") < 0.7 * peak(plain)


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ("--fp4-format e2m1", UnsupportedError, "nvfp4 needs capability 10.0"),
        ("--micro-batch-size 3", InputError, "--global-batch-size is 64, no multiple of"),
        ("--num-attention-heads 9 --tensor-model-parallel-size 2", InputError, "is 9, no multiple"),
        ("--hidden-dropout much", InputError, "--hidden-dropout much is no number"),
        ("--recompute-modules mlp", UnsupportedError, "--recompute-modules mlp of Megatron-LM has"),
        ("--optimizer muon", UnsupportedError, "those that have: adam"),
        (
            "--decoder-first-pipeline-num-layers 1 --pipeline-model-parallel-size 4",
            InputError,
            "8 layers do not divide over 4 chunks",
        ),
        ("--num-experts 4 --moe-layer-freq x", InputError, "no number and no list of 0 and 1"),
        ("--num-experts 4 --moe-layer-freq [1]*3", InputError, "is of 3 layers and --num-layers"),
    ],
)
def test_what_has_no_formula_is_said(more, error, said):
    with pytest.raises(error, match=said):
        predict(f"{PLAIN} {more}")


def test_what_is_near_without_a_flag_is_named():
    line = f"{PLAIN} --enable-cuda-graph --external-cuda-graph"
    with pytest.raises(UnsupportedError, match="launches take longer") as told:
        predict(line)
    near = told.value.nearest["source"]
    assert near == PLAIN
    assert set(near.left_out) == {"--enable-cuda-graph", "--external-cuda-graph"}
    with pytest.raises(UnsupportedError) as told:
        predict(f"{line} --use-megatron-fsdp")
    assert not told.value.nearest


def test_what_a_model_needs_has_to_be_said():
    with pytest.raises(InputError, match="says no --hidden-size"):
        predict("pretrain_gpt.py --num-layers 2 --vocab-size 9")


def test_other_scripts_have_none():
    with pytest.raises(UnsupportedError, match=r"pretrain_hybrid\.py has no formula"):
        predict("pretrain_hybrid.py --num-layers 2 --vocab-size 9")


def test_what_is_there_between_steps_is_what_was_simulated():
    (rank,) = predict(
        "pretrain_gpt.py --num-layers 6 --hidden-size 512 --num-attention-heads 8 "
        "--micro-batch-size 4 --global-batch-size 32 --seq-length 1024 --bf16 "
        "--max-position-embeddings 1024 --no-gradient-accumulation-fusion --vocab-size 50257 "
        "--attention-backend unfused"
    ).ranks
    assert rank.predicted_between_steps_bytes == pytest.approx(914179100, rel=1e-5)


def test_fp32_copies_of_half_gradients_are_there_between_steps():
    half = PLAIN.replace("--bf16", "--fp16")
    wide = f"{half} --accumulate-allreduce-grads-in-fp32"
    first, second = (predict(line).ranks[0] for line in (half, wide))
    num_updated = -(-(second.state_bytes - first.state_bytes) // 2 // 8)  # of eight replicas
    gone = second.predicted_between_steps_bytes - first.predicted_between_steps_bytes
    assert gone == pytest.approx(16 * num_updated - 4 * num_updated, rel=0.01)


def test_an_encoder_with_a_decoder_is_predicted():
    (rank,) = predict(
        "pretrain_t5.py --encoder-num-layers 3 --decoder-num-layers 3 --hidden-size 768 "
        "--num-attention-heads 12 --ffn-hidden-size 3072 --encoder-seq-length 512 --bf16 "
        "--decoder-seq-length 128 --max-position-embeddings 512 --tensor-model-parallel-size 2 "
        "--micro-batch-size 4 --global-batch-size 16 --vocab-extra-ids 100 "
        "--tokenizer-type BertWordPieceCase --attention-backend unfused"
    ).ranks
    assert rank.predicted_peak_allocated_bytes == pytest.approx(1146115072, rel=0.015)


def test_an_answer_is_short_and_says_its_kind(capsys):
    assert main(["estimate", "--from", PLAIN, "--gpus", "8xh100"]) == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= 12
    assert said.startswith("FITS      Megatron-LM's pretrain_gpt.py on 8 x ")
    assert "predicted" in said
    assert "simulated" not in said


def test_every_stage_and_what_a_gpu_does_is_said(capsys):
    line = f"{PLAIN} --pipeline-model-parallel-size 4"
    found = predict(line)
    every = found.predicted_stage_reserved_bytes
    assert len(every) == 4
    by_rank = [rank.predicted_peak_reserved_bytes for rank in found.ranks]
    assert [every[0], every[1], every[3]] == by_rank
    assert every[1] >= every[2]  # which holds fewer micro-batches
    whole = predict(PLAIN)
    each = [one.predicted_flops_per_s * one.predicted_step_s for one in (found, whole)]
    assert each[0] == pytest.approx(each[1], rel=1e-6)  # the same model on as many GPUs
    assert whole.predicted_stage_reserved_bytes == ()
    main(["estimate", "--gpus", "8xh100", "--from", line])
    out = " ".join(capsys.readouterr().out.split())
    assert "each GPU of the pipeline's 4, reserved: 1: " in out
    assert "TFLOP/s and" in out
    assert "tokens/s a GPU" in out


def test_what_does_not_fit_ends_with_its_code(capsys):
    line = PLAIN.replace("--num-layers 8", "--num-layers 800")
    assert main(["estimate", "--from", line, "--gpus", "8xh100", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["fits"]
    assert told["ranks"][0]["predicted_peak_allocated_bytes"] > 80e9


def test_what_fits_in_expandable_segments_alone_says_so(capsys):
    line = f"{PLAIN.replace('2048', '8192')} --micro-batch-size 8"
    for layers, expected in ((22, True), (40, False)):
        more = line.replace("--num-layers 8", f"--num-layers {layers}")
        (rank, *_) = predict(more).ranks
        assert rank.word == "no"
        assert rank.predicted_peak_expandable_bytes < rank.predicted_peak_reserved_bytes
        assert (rank.predicted_peak_expandable_bytes <= rank.capacity_bytes) is expected
        assert main(["estimate", "--from", more, "--gpus", "8xh100"]) == 1
        words = "with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: 68.68 GiB, predicted"
        assert (words in " ".join(capsys.readouterr().out.split())) is expected
    assert predict(line).ranks[0].predicted_peak_expandable_bytes == 0


def test_a_model_beside_a_program_is_refused(capsys):
    assert main(["estimate", "llama-3.1-8b", "--from", PLAIN]) == 2
    assert "llama-3.1-8b stands beside --from" in capsys.readouterr().err


def test_the_mixtures_that_wait_are_those_of_the_stage():
    """Dense layers first: the last stage is the same as where all layers are mixtures."""

    def last_stage_s(layers):
        words = f"{PLAIN} --num-experts 8 --moe-token-dispatcher-type alltoall".split()
        words += ["--pipeline-model-parallel-size", "2", "--expert-model-parallel-size", "4"]
        at = read_layout(
            flags_of((*words[1:], "--moe-layer-freq", layers), words[0]),
            vocab=50257,
            world_size=8,
            stage=1,
            capability=(9, 0),
            kind="gpt",
        )
        return slowest_step_s((at,), EIGHT, NOTHING)

    assert last_stage_s("([0]*4+[1]*4)") == last_stage_s("([1]*8)")
    assert last_stage_s("([0]*4+[1]*4)") != last_stage_s("([1]*4+[0]*4)")


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ("mlp moe_act", "--recompute-modules mlp of Megatron-LM has no formula"),
        ("layernorm --multi-latent-attention", "layernorm with latent attention has no formula"),
    ],
)
def test_modules_whose_recomputing_has_no_formula_are_named(modules, said):
    with pytest.raises(UnsupportedError, match=said):
        predict(f"{PLAIN} --recompute-granularity selective --recompute-modules {modules}")


def test_activations_of_experts_are_what_recomputing_them_saves():
    """In 2 of 4 processes' halves: what a product of 8 x 2 x 2,048 rows reads, of every layer."""
    line = f"{PLAIN} --num-experts 8 --expert-model-parallel-size 2 --moe-grouped-gemm"
    line += " --moe-token-dispatcher-type alltoall --moe-router-topk 2 --swiglu"
    line += " --ffn-hidden-size 4096 --moe-ffn-hidden-size 4096"
    again = f"{line} --recompute-granularity selective --recompute-modules"
    saved = peak(line) - peak(f"{again} moe_act")
    assert saved == pytest.approx(8 * 2 * (2 * 2 * 2048) * 4096, rel=0.02)
    norms = peak(f"{again} moe_act") - peak(f"{again} moe_act layernorm")
    assert norms == pytest.approx(8 * 2 * (2 * 2048) * 1024, rel=0.02)


def test_a_process_takes_more_than_its_allocator():
    """The middle of a context, and of a group for every axis of more than one."""
    (alone,) = predict(PLAIN, 1).ranks
    several = predict(PLAIN, 8).ranks[0]
    outside, more = (
        r.predicted_process_bytes - r.predicted_peak_reserved_bytes for r in (alone, several)
    )
    assert 0.7e9 < outside < 1.8e9
    assert 0.11e9 < more - outside < 0.69e9


def step_s(more, stage=1, overlaps=NOTHING):
    """Return the seconds of a step of one of two stages."""
    words = f"{PLAIN} --pipeline-model-parallel-size 2 {more}".split()
    at = read_layout(
        flags_of(tuple(words[1:]), words[0]),
        vocab=50257,
        world_size=8,
        stage=stage,
        capability=(9, 0),
        kind="gpt",
    )
    return slowest_step_s((at,), EIGHT, overlaps)


def test_the_head_is_not_among_what_is_recomputed():
    """Recomputing adds as much to the last stage, which has the head, as to the first."""
    again = "--recompute-granularity full --recompute-method uniform"
    more = [step_s(again, stage) - step_s("", stage) for stage in (0, 1)]
    assert more[1] == pytest.approx(more[0], rel=0.05)


def test_stages_that_take_turns_send_beside_products():
    """Where each has several pieces of the model, unless that is turned off."""
    waits, beside = (Overlaps(replicas=False, stages=stages) for stages in (False, True))
    virtual = "--num-virtual-stages-per-pipeline-rank 4"
    assert step_s("", overlaps=beside) == step_s("", overlaps=waits)
    assert step_s(virtual, overlaps=beside) < step_s(virtual, overlaps=waits)


def test_a_compiled_loss_makes_a_copy_in_fp32():
    vocab = 50304
    logits = 2 * 2048 * vocab * 4
    eager = peak(f"{PLAIN} --num-layers 1")
    fused = peak(f"{PLAIN} --num-layers 1 --cross-entropy-loss-fusion")
    assert fused == pytest.approx(eager + logits, abs=2**20)


def test_gradients_of_the_output_layer_can_wait():
    line = f"{PLAIN} --pipeline-model-parallel-size 4"
    of_one = 2 * 2048 * (50304 + 1024) * 2  # gradients of logits, and what the layer was given
    last = [
        predict(line + more).ranks[-1].predicted_peak_allocated_bytes
        for more in (
            "",
            " --defer-embedding-wgrad-compute --wgrad-deferral-limit 1",
            " --defer-embedding-wgrad-compute --wgrad-deferral-limit 3",
        )
    ]
    assert last[1] - last[0] == pytest.approx(of_one, rel=0.1)
    assert last[2] - last[1] == pytest.approx(2 * of_one, rel=0.01)


ONE = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 "
    "--max-position-embeddings 512 --micro-batch-size 1 --bf16 --vocab-size 32000"
)
STAGED = "--pipeline-model-parallel-size 2"
REFUSED = {
    f"{STAGED} --decoder-first-pipeline-num-layers 100": "the ends of the pipeline hold more than",
    f"{STAGED} --num-virtual-stages-per-pipeline-rank 1000000000": "are over 4 layers",
    f"{STAGED} --pipeline-model-parallel-layout E(t*999|)*999L": "is of more chunks and layers",
    f"{STAGED} --pipeline-model-parallel-layout Ett|ttL --decoder-first-pipeline-num-layers 2": (
        "both say what stages hold"
    ),
    "--num-layers 1000000": "is over 2,000",
    f"--num-layers {'9' * 5000}": "as nothing is; give less",
    "--window-size 5-,0": "no pair of numbers",
    "--window-size 127,abc": "no pair of numbers",
    "--num-experts 8 --moe-layer-freq [0]*99999999999": "no number and no list",
    "--fp4-format e2m1 --fp8-format e4m3": "do not go together",
    "--fp4-format e2m1 --fp8-param-gather --use-distributed-optimizer": "in fp4 has no formula",
    "--tp-comm-overlap": "needs --sequence-parallel",
    "--mtp-num-layers 1": "needs --position-embedding-type rope or none",
    "--deepspeed --zero-stage abc": "no stage of ZeRO",
    "--deepspeed --zero-stage 03": "no stage of ZeRO",
    "--deepspeed --pad-vocab-size-to 0": "--pad-vocab-size-to 0 is no whole number",
}


@pytest.mark.parametrize("more", REFUSED, ids=lambda more: more[:60])
def test_what_megatron_refuses_is_refused_in_a_sentence(more):
    with pytest.raises((InputError, UnsupportedError), match=re.escape(REFUSED[more])) as raised:
        predict_program(f"{ONE} {more}", 8, Machines("b200"))
    assert len(str(raised.value)) < 300


def test_a_t5_of_latent_attention_is_refused():
    line = ONE.replace("pretrain_gpt", "pretrain_t5") + " --multi-latent-attention"
    line += " --encoder-seq-length 512 --decoder-seq-length 128"
    with pytest.raises(UnsupportedError, match="latent attention of T5"):
        predict(line)


def test_layers_are_listed_as_a_yaml_lists_them():
    one = by_layer.mixtures(flags_of(["--moe-layer-freq", "1", "0", "1", "1"], "x"), 4, is_any=True)
    same = by_layer.mixtures(flags_of(["--moe-layer-freq", "[1,0,1,1]"], "x"), 4, is_any=True)
    assert one == same == (True, False, True, True)


def test_megatron_deepspeed_attends_by_flash_attention_where_it_is_asked_to():
    plain = peak(f"{ONE} --use-flash-attn --use-distributed-optimizer")
    assert peak(f"{ONE} --use-flash-attn-v2 --deepspeed --zero-stage 1") == plain
    assert peak(f"{ONE} --deepspeed --zero-stage 1") > plain


def test_operations_of_a_gpu_are_those_of_its_sequences():
    at = read_layout(
        flags_of(ONE.split()[1:], "x"), vocab=32000, world_size=1, stage=0, capability=(9, 0),
        kind="gpt",
    )  # fmt: skip
    assert device_flops([at]) == pytest.approx(at.num_micro * sequence_flops(at), rel=1e-12)


@pytest.mark.parametrize("window", [0, 1, 128, 300, 512, 4096])
def test_a_window_is_told_by_the_keys_in_it(window):
    """By hand: a token sees itself and those before it, at most a window of them."""
    line = f"{ONE} --window-size {window - 1},0" if window else ONE
    at = read_layout(
        flags_of(line.split()[1:], "x"), vocab=32000, world_size=1, stage=0, capability=(9, 0),
        kind="gpt",
    )  # fmt: skip
    seen = sum(min(place + 1, window or 512) for place in range(512))
    assert speed._pairs(at) == pytest.approx(4 * seen, rel=4e-3)


@pytest.mark.parametrize("gpus", ["8xv100-32gb", "8xt4"])
def test_cards_without_units_for_bf16_have_no_speed_in_it(capsys, gpus):
    """They were told fp16's, at which they run ``--fp16`` alone."""
    told = {}
    for flag in ("--bf16", "--fp16"):
        main(["estimate", "--from", ONE.replace("--bf16", flag), "--gpus", gpus])
        told[flag] = capsys.readouterr().out
    assert "speed     unknown" in told["--bf16"]
    assert " ms a step; " in told["--fp16"]


def test_both_kinds_of_16_bits_are_as_fast_where_their_rates_are():
    half = ONE.replace("--bf16", "--fp16 --accumulate-allreduce-grads-in-fp32")
    assert predict(half).predicted_step_s == predict(ONE).predicted_step_s
