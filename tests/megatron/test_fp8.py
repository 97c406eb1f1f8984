"""Megatron-LM in fp8 by formula, against its own processes on the pretend GPU.

The numbers are of Megatron-LM d98e8a6 with Transformer Engine 2.20.2 (brimful simulate --from),
2026-11-28.
"""

import pytest

from brimful.errors import UnsupportedError
from brimful.megatron.recipe import Recipe, multiplies_any_layout
from brimful.programs.formulas import Machines, predict_program

WIDE = (
    "pretrain_gpt.py --hidden-size 4096 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --ffn-hidden-size 14336 --swiglu --normalization RMSNorm "
    "--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope "
    "--hidden-dropout 0 --attention-dropout 0 --bf16 --seq-length 4096 "
    "--max-position-embeddings 4096 --use-distributed-optimizer --lr 1e-4 "
)
SHARED = "--tensor-model-parallel-size 2 --sequence-parallel "
SMALL = "--num-layers 4 --micro-batch-size 1 --global-batch-size 8 --vocab-size 128256 " + SHARED
ALONE = "--num-layers 2 --micro-batch-size 1 --global-batch-size 8 --vocab-size 128256 "
ROWS = (
    "--num-layers 6 --micro-batch-size 4 --global-batch-size 32 --vocab-size 32000 "
    "--cross-entropy-loss-fusion --cross-entropy-fusion-impl native "
)
EXPERTS = (
    "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 2048 --moe-grouped-gemm "
    "--moe-token-dispatcher-type alltoall --expert-model-parallel-size 4 "
    "--expert-tensor-parallel-size 1 "
)
PIECES = EXPERTS.replace("--moe-grouped-gemm ", "")
"""Experts one after the other."""
EVERY_LAYER = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
DELAYED = "--fp8-format hybrid --fp8-recipe delayed "
TENSORWISE = "--fp8-format hybrid --fp8-recipe tensorwise "
BLOCKWISE = "--fp8-format hybrid --fp8-recipe blockwise "
MXFP8 = "--fp8-format e4m3 --fp8-recipe mxfp8 "
SIMULATED = [
    (SMALL + DELAYED, "h100-80gb", 8, 13027127296),
    (SMALL + TENSORWISE, "h100-80gb", 8, 12993529856),
    (SMALL + BLOCKWISE, "h100-80gb", 8, 12999495680),
    (SMALL + MXFP8, "b200", 8, 13028641792),
    (ALONE + DELAYED, "h100-80gb", 4, 20071328768),
    (ALONE + TENSORWISE, "h100-80gb", 4, 20037752832),
    (ROWS + SHARED + TENSORWISE, "h100-80gb", 8, 17533155328),
    (ROWS + SHARED + MXFP8, "b200", 8, 17614922752),
    (ROWS + SHARED + BLOCKWISE, "h100-80gb", 8, 17571202048),
    (ROWS + DELAYED, "h100-80gb", 4, 35026895872),
    (ROWS + SHARED + TENSORWISE + "--first-last-layers-bf16", "b200", 8, 17029831680),
    (ROWS + SHARED + EXPERTS, "h100-80gb", 8, 13984382464),
    (ROWS + SHARED + EXPERTS + TENSORWISE, "h100-80gb", 8, 14034747904),
    (ROWS + SHARED + EXPERTS + BLOCKWISE, "h100-80gb", 8, 14060088832),
    (ROWS + SHARED + EXPERTS + MXFP8, "b200", 8, 14086618624),
    (ROWS + SHARED + EXPERTS + DELAYED, "h100-80gb", 8, 14236139008),
    (ROWS + SHARED + PIECES, "h100-80gb", 8, 13850160640),
    (ROWS + SHARED + PIECES + TENSORWISE, "h100-80gb", 8, 13900526080),
    (ROWS + SHARED + TENSORWISE + EVERY_LAYER, "h100-80gb", 8, 12191303680),
    (ROWS + SHARED + TENSORWISE + "--recompute-granularity selective", "h100-80gb", 8, 18031225856),
]


def predict(more, gpu="h100-80gb", world=8):
    return predict_program(WIDE + more, world, Machines(gpu))


def test_biased_layers_are_predicted_as_they_are_simulated():
    """GPT's: norms with a mean, biases, dropout, GELU."""
    line = (
        "pretrain_gpt.py --num-layers 4 --hidden-size 2048 --num-attention-heads 16 "
        "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 "
        "--global-batch-size 16 --bf16 --vocab-size 50257 --use-distributed-optimizer --lr 1e-4 "
    )
    for more, simulated in (("", 4139559424), (DELAYED, 4173171200)):
        found = predict_program(line + SHARED + more, 8, Machines("h100-80gb"))
        peak = max(rank.predicted_peak_allocated_bytes for rank in found.ranks)
        assert peak == pytest.approx(simulated, rel=1e-3)


@pytest.mark.parametrize(("more", "gpu", "world", "simulated"), SIMULATED)
def test_predicted_peaks_are_the_simulated_ones(more, gpu, world, simulated):
    peak = max(rank.predicted_peak_allocated_bytes for rank in predict(more, gpu, world).ranks)
    assert peak == pytest.approx(simulated, rel=1e-3)


def test_products_in_fp8_are_faster():
    plain, quick = (predict(ROWS + more).predicted_step_s for more in ("", TENSORWISE))
    assert plain / 2 < quick < plain


def test_layers_at_the_ends_stay_in_16_bits():
    recipe = Recipe(
        name="delayed", any_layout=False, first_plain=1, last_plain=2, gathers_parameters=False
    )
    assert [recipe.is_plain(number, 5) for number in range(5)] == [True, False, False, True, True]


def test_blackwell_makes_no_transpose():
    assert not multiplies_any_layout((9, 0))
    assert multiplies_any_layout((10, 0))
    assert not multiplies_any_layout((12, 0))


@pytest.mark.parametrize(
    ("more", "gpu", "said"),
    [
        (SMALL + MXFP8, "h100-80gb", r"mxfp8 needs capability 10\.0 and the card has 9\.0"),
        (SMALL + DELAYED, "a100-80gb", r"delayed needs capability 8\.9 and the card has 8\.0"),
        (SMALL + DELAYED + "--fp8-multi-head-attention", "h100-80gb", "attention in fp8"),
        (SMALL + DELAYED + "--transformer-impl local", "h100-80gb", "Transformer Engine's layers"),
        (
            ROWS + SHARED + EXPERTS + DELAYED
            + "--recompute-granularity selective --recompute-modules moe_act",
            "h100-80gb",
            "recomputing moe_act in fp8",
        ),
    ],
)  # fmt: skip
def test_what_has_no_formula_is_said(more, gpu, said):
    with pytest.raises(UnsupportedError, match=said):
        predict(more, gpu)
