"""Command lines of Megatron-LM by formula, against its own processes on the pretend GPU.

The numbers are of Megatron-LM d98e8a6 with Transformer Engine 2.20.2 (brimful simulate --from),
2026-11-28. Latent attention, shared experts, written layouts of stages, gpt-oss, NVFP4, parameters
in fp8.
"""

import pytest

from brimful.errors import InputError, UnsupportedError
from brimful.programs.formulas import Machines, predict_program, predict_speed

COMMON = (
    "--normalization RMSNorm --untie-embeddings-and-output-weights --hidden-dropout 0 "
    "--attention-dropout 0 --bf16 --seq-length 4096 --max-position-embeddings 4096 "
    "--use-distributed-optimizer --lr 1e-4 --vocab-size 32000 --cross-entropy-loss-fusion "
)
LATENT = (
    "pretrain_gpt.py --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 6144 --swiglu "
    "--disable-bias-linear --position-embedding-type rope --micro-batch-size 1 "
    "--cross-entropy-fusion-impl native --multi-latent-attention --kv-lora-rank 512 "
    f"--qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 {COMMON}"
)
OF_QUERIES = "--q-lora-rank 768 "
FOUR = "--num-layers 4 --global-batch-size 8 "
DEEPSEEK = LATENT + OF_QUERIES + "--qk-layernorm "
GROUPED = (
    "pretrain_gpt.py --num-layers 6 --hidden-size 4096 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 --swiglu "
    "--position-embedding-type rope --micro-batch-size 1 --global-batch-size 8 "
    f"--cross-entropy-fusion-impl native {COMMON}"
)
PLAIN = GROUPED + "--disable-bias-linear "
EXPERTS = (
    "--moe-router-topk 4 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --num-experts 16 "
    "--expert-model-parallel-size 4 --expert-tensor-parallel-size 1 "
)
MIXTURE = (
    f"{EXPERTS} --moe-ffn-hidden-size 1024 --moe-router-score-function sigmoid "
    "--moe-router-enable-expert-bias --moe-shared-expert-intermediate-size 1024 "
)
OSS = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 2880 --num-attention-heads 64 "
    "--group-query-attention --num-query-groups 8 --kv-channels 64 --ffn-hidden-size 2880 "
    "--micro-batch-size 2 --global-batch-size 16 --cross-entropy-fusion-impl te "
    f"--no-create-attention-mask-in-dataloader {COMMON} {EXPERTS} --moe-ffn-hidden-size 2880 "
)
GATED = "--position-embedding-type rope --disable-bias-linear --swiglu "
QUICK = (
    "--no-bias-dropout-fusion --quick-geglu --activation-func-clamp-value 7.0 "
    "--glu-linear-offset 1.0 "
)
GPT_OSS = (
    f"{OSS} {QUICK} --position-embedding-type yarn --window-size 127,0 "
    "--window-attn-skip-freq 2 --softmax-type learnable "
)
SHARED = "--tensor-model-parallel-size 2 --sequence-parallel "
DELAYED = "--fp8-format hybrid --fp8-recipe delayed "
TENSORWISE = "--fp8-format hybrid --fp8-recipe tensorwise "
BLOCKWISE = "--fp8-format hybrid --fp8-recipe blockwise "
MXFP8 = "--fp8-format e4m3 --fp8-recipe mxfp8 "
NVFP4 = "--fp4-format e2m1 "
GATHERED = "--fp8-param-gather "
REUSED = f"{GATHERED} --reuse-grad-buf-for-mxfp8-param-ag --overlap-param-gather "
HOPPER, BLACKWELL = "h100-80gb", "b200"
SIMULATED = [
    (DEEPSEEK + FOUR, HOPPER, 5452692480),
    (DEEPSEEK + FOUR + SHARED, HOPPER, 3113484800),
    (DEEPSEEK + FOUR + DELAYED, HOPPER, 5735865856),
    (DEEPSEEK + FOUR + TENSORWISE, HOPPER, 5699634176),
    (DEEPSEEK + FOUR + BLOCKWISE, HOPPER, 5706656768),
    (DEEPSEEK + FOUR + MXFP8, BLACKWELL, 5718875136),
    (DEEPSEEK + FOUR + SHARED + DELAYED, HOPPER, 3262868992),
    (DEEPSEEK + FOUR + SHARED + TENSORWISE, HOPPER, 3247450624),
    (DEEPSEEK + FOUR + SHARED + BLOCKWISE, HOPPER, 3252018688),
    (DEEPSEEK + FOUR + SHARED + MXFP8, BLACKWELL, 3258482176),
    (LATENT + "--qk-layernorm " + FOUR + SHARED, HOPPER, 3128813056),
    (LATENT + "--qk-layernorm " + FOUR + SHARED + TENSORWISE, HOPPER, 3275614720),
    (LATENT + OF_QUERIES + FOUR + SHARED, HOPPER, 3090858496),
    (LATENT + OF_QUERIES + FOUR + SHARED + MXFP8, BLACKWELL, 3240323584),
    (DEEPSEEK + FOUR + MIXTURE + MXFP8, BLACKWELL, 6091730944),
    (DEEPSEEK + FOUR + MIXTURE + SHARED + TENSORWISE, HOPPER, 4128889856),
    (PLAIN + MIXTURE, HOPPER, 12932360704),
    (PLAIN + MIXTURE + SHARED, HOPPER, 8910356992),
    (PLAIN + MIXTURE + TENSORWISE, HOPPER, 13561573888),
    (PLAIN + MIXTURE + SHARED + DELAYED, HOPPER, 9628640768),
    (PLAIN + MIXTURE + SHARED + TENSORWISE, HOPPER, 9528933888),
    (PLAIN + MIXTURE + SHARED + BLOCKWISE, HOPPER, 9538924032),
    (PLAIN + MIXTURE + SHARED + MXFP8, BLACKWELL, 9567794688),
    (GROUPED + "--add-qkv-bias ", HOPPER, 17405775872),
    (GROUPED + "--no-bias-dropout-fusion " + SHARED, HOPPER, 9977802752),
    (OSS + GATED, HOPPER, 13034998784),
    (OSS + GATED + "--window-size 127,0 --window-attn-skip-freq 2", HOPPER, 13034998784),
    (OSS + GATED + "--softmax-type learnable", HOPPER, 13035002368),
    (OSS + QUICK + "--position-embedding-type rope", HOPPER, 14557522944),
    (GPT_OSS, HOPPER, 14567129088),
    (GPT_OSS + SHARED, HOPPER, 10088270336),
    (GPT_OSS + MXFP8, BLACKWELL, 14961119232),
    (GPT_OSS + SHARED + TENSORWISE, HOPPER, 10661199360),
    (
        GPT_OSS + "--recompute-granularity selective --recompute-modules layernorm moe_act",
        HOPPER,
        12284937216,
    ),
    (PLAIN + NVFP4, BLACKWELL, 18093488640),
    (PLAIN + SHARED + NVFP4, BLACKWELL, 10378089984),
    (PLAIN + MIXTURE + SHARED + NVFP4, BLACKWELL, 9011236864),
    (DEEPSEEK + FOUR + NVFP4, BLACKWELL, 5430906880),
    (PLAIN + SHARED + DELAYED + GATHERED, HOPPER, 9749946368),
    (PLAIN + SHARED + TENSORWISE + GATHERED, HOPPER, 9699603456),
    (PLAIN + SHARED + BLOCKWISE + GATHERED, HOPPER, 9708498944),
    (PLAIN + SHARED + MXFP8 + REUSED, BLACKWELL, 9751278592),
    (PLAIN + MIXTURE + SHARED + MXFP8 + REUSED, BLACKWELL, 8635627008),
    (DEEPSEEK + FOUR + MIXTURE + TENSORWISE + GATHERED, BLACKWELL, 5546931200),
    (DEEPSEEK + FOUR + MIXTURE + "--mtp-num-layers 1", HOPPER, 7462489600),
    (DEEPSEEK + FOUR + MIXTURE + SHARED + "--mtp-num-layers 1", HOPPER, 4900700672),
    (DEEPSEEK + FOUR + MIXTURE + MXFP8 + "--mtp-num-layers 1", BLACKWELL, 7636412416),
]  # fmt: skip
TWO = "--pipeline-model-parallel-size 2 "
MORE = "--mtp-num-layers 1 "
SIX = "--num-layers 6 --global-batch-size 32 "
STAGES = [
    (
        DEEPSEEK + SIX + MIXTURE + "--pipeline-model-parallel-size 2 "
        "--pipeline-model-parallel-layout 'Ett|t|tt|tL'",
        {0: 7247966720, 4: 4729370624},
    ),
    (
        DEEPSEEK + SIX + "--pipeline-model-parallel-size 4 "
        "--pipeline-model-parallel-layout 'Et|(tt|)*2tL'",
        {0: 2927430656, 2: 3394970624, 6: 3428086784},
    ),
    (
        DEEPSEEK + SIX + "--pipeline-model-parallel-size 2 "
        "--pipeline-model-parallel-layout 'Ettt|tt|t|L'",
        {4: 4517473792},
    ),
    (
        DEEPSEEK + SIX + MIXTURE + MORE + TWO + "--pipeline-model-parallel-layout 'Ett|t|tt|tmL'",
        {0: 7248618496, 4: 7016530432},
    ),
    (DEEPSEEK + SIX + SHARED + MORE + TWO, {4: 4017869824}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "gpu", "simulated"), SIMULATED)
def test_predicted_peaks_are_the_simulated_ones(line, gpu, simulated):
    found = predict_program(line, 8, Machines(gpu))
    assert found.ranks[0].predicted_peak_allocated_bytes == pytest.approx(simulated, rel=4e-3)


@pytest.mark.parametrize(("line", "simulated"), STAGES)
def test_stages_of_a_written_layout_are_predicted(line, simulated):
    found = predict_program(line, 8, Machines(HOPPER)).ranks
    peaks = {rank.rank: rank.predicted_peak_allocated_bytes for rank in found}
    assert {rank: peaks[rank] for rank in simulated} == pytest.approx(simulated, rel=4e-3)


def test_a_layout_that_differs_between_the_ends_has_a_process_of_each_kind():
    layout = "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et|t|ttt|tL"
    found = predict_program(DEEPSEEK + SIX + layout, 8, Machines(HOPPER))
    assert [rank.rank for rank in found.ranks] == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("Et|ttxtL", "no layout of an embedding"),
        ("tE|ttttL", "begin with E and end with L"),
        ("Et|ttt|ttL", "3 chunks, no multiple of pp 2"),
        ("Et|ttttttL", "these hold 7"),
        ("Et|tttttmL", "one m for each of --mtp-num-layers 0"),
    ],
)
def test_layouts_that_megatron_refuses_are_said(layout, said):
    stages = f"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout {layout}"
    with pytest.raises(InputError, match=said):
        predict_program(DEEPSEEK + SIX + stages, 8, Machines(HOPPER))


@pytest.mark.parametrize(
    ("line", "error", "said"),
    [
        (PLAIN + NVFP4, UnsupportedError, r"nvfp4 needs capability 10\.0"),
        (PLAIN + MXFP8 + GATHERED, InputError, "needs --reuse-grad-buf-for-mxfp8-param-ag"),
        (DEEPSEEK + FOUR + "--mtp-num-layers 2", UnsupportedError, "several tokens more"),
        (OSS + GATED + "--window-size wide", InputError, "no pair of numbers"),
        (
            OSS + QUICK + "--no-bias-swiglu-fusion ",
            UnsupportedError,
            "--quick-geglu of Megatron-LM",
        ),
        (OSS + QUICK + GATED, UnsupportedError, "--quick-geglu of Megatron-LM has a formula in"),
        (
            OSS + GATED + "--window-size 7,0 --attention-backend unfused",
            UnsupportedError,
            "windows and other kinds of softmax",
        ),
    ],
)
def test_what_has_no_formula_is_said(line, error, said):
    gpu = BLACKWELL if MXFP8 in line else HOPPER
    with pytest.raises(error, match=said):
        predict_program(line, 8, Machines(gpu))


@pytest.mark.parametrize("more", ["", DELAYED])
def test_user_buffers_hide_exchanges(more):
    more += "--micro-batch-size 8 --global-batch-size 64 "  # the host is ahead of what it launches
    apart = predict_speed(PLAIN + SHARED + more, 8, Machines(HOPPER))
    beside = predict_speed(PLAIN + SHARED + more + "--tp-comm-overlap", 8, Machines(HOPPER))
    assert apart < beside < 1.5 * apart
    notes = predict_program(PLAIN + SHARED + "--tp-comm-overlap", 8, Machines(HOPPER)).notes
    assert any("outside of the allocator" in note for note in notes)


def test_windows_are_quicker():
    of_all = predict_speed(OSS + GATED, 8, Machines(HOPPER))
    of_half = predict_speed(
        OSS + GATED + "--window-size 127,0 --window-attn-skip-freq [1,0,1,0]", 8, Machines(HOPPER)
    )
    windows = predict_speed(OSS + GATED + "--window-size (127,0)", 8, Machines(HOPPER))
    assert of_all < of_half < windows


def test_experts_with_few_rows_each_are_slower():
    """As many operations a token, of experts that eight and that half of the tokens go to."""
    few, many = MIXTURE.replace("--num-experts 16", "--num-experts 64"), MIXTURE
    rates = [predict_speed(PLAIN + line, 8, Machines(HOPPER)) for line in (few, many)]
    assert rates[0] < 0.9 * rates[1]


def test_cards_without_units_for_bf16_have_a_speed_in_fp16():
    line = PLAIN.replace("--bf16", "--fp16") + "--transformer-impl local"
    assert "--fp16" in line
    assert predict_speed(line, 8, Machines("v100-32gb"))
