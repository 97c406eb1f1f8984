from fractions import Fraction
from math import prod

import pytest

from brimful.cost.profiles import Dimensions, Term, dimensions
from brimful.simulate.fit import TOKEN_FACTORS, WIDTH_FACTORS, add_terms, fit_size, value
from brimful.simulate.small_models import SHAPES as TRACED
from brimful.simulate.small_models import degree, parting, share_received, small_model
from samples import make_adapter, make_job

pytestmark = pytest.mark.torch

SHAPES = (
    Dimensions(B=3, S=192, H=264, F=328, A=6, K=2, D=40, V=1096, P=384, C=192, R=0),
    Dimensions(B=5, S=288, H=408, F=712, A=8, K=4, D=56, V=1544, P=672, C=480, R=0),
    Dimensions(B=7, S=96, H=504, F=904, A=15, K=3, D=24, V=2312, P=480, C=224, R=0),
    Dimensions(B=2, S=480, H=232, F=1208, A=15, K=5, D=88, V=3336, P=544, C=320, R=0),
)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (lambda d: 4 * d.B * d.S * d.H, (Term("BSH", 4.0),)),
        (lambda d: 2 * d.B * d.A * d.S * d.S, (Term("BSSA", 2.0),)),
        (lambda d: d.S * d.D // 2, (Term("SD", 0.5),)),
        (lambda d: 4 * d.C * d.V, (Term("CV", 4.0),)),
        (lambda _: 8, (Term("", 8.0),)),
        (lambda _: 0, ()),
    ],
)
def test_a_product_is_found(size, expected):
    assert fit_size(tuple(size(d) for d in SHAPES), SHAPES) == expected


def test_a_sum_of_two_products_is_found():
    sizes = tuple(4 * d.B * d.S * d.H + 4 * d.B * d.S for d in SHAPES)
    found = fit_size(sizes, SHAPES)
    assert {(t.factors, t.coefficient) for t in found} == {("BS", 4.0), ("BSH", 4.0)}


def test_chunks_are_not_mistaken_for_a_third_of_the_tokens():
    sizes = tuple(12 * d.C * d.H for d in SHAPES)
    assert fit_size(sizes, SHAPES) == (Term("BSH", 4.0),)


def test_what_is_no_product_is_refused():
    with pytest.raises(ValueError, match="no product"):
        fit_size((101, 10007, 1000003, 31), SHAPES)


def test_what_a_dense_model_has_not_is_no_factor():
    """Its sizes of experts are 0, and 0 times anything is no formula."""
    sizes = tuple(4 * d.B * d.S * d.H for d in SHAPES)
    assert fit_size(sizes, SHAPES) == (Term("BSH", 4.0),)
    mixed = tuple(d._replace(E=e, T=2 + e % 3, M=8 * e) for d, e in zip(SHAPES, (5, 7, 9, 4)))  # noqa: B905
    routed = tuple(2 * d.B * d.S * d.T * d.M for d in mixed)
    assert fit_size(routed, mixed) == (Term("BSTM", 2.0),)


def test_equal_products_are_collected():
    total = add_terms([(Term("BSH", 4.0),), (Term("BSH", 2.0), Term("V", 1.0)), (Term("V", -1.0),)])
    assert total == (Term("BSH", 6.0),)


@pytest.mark.parametrize(
    ("weight", "block", "num_bytes"),
    [("HF", 64, 4), ("HAD", 64, 1), ("HKD", 64 * 256, 4)],
)
def test_the_scales_of_a_weight_in_four_bits_are_found_though_a_block_is_not_whole(
    weight, block, num_bytes
):
    odd = tuple(d._replace(H=d.H + 1) for d in SHAPES)
    counts = [prod(getattr(d, letter) for letter in weight) for d in odd]
    assert any(count % block for count in counts)
    sizes = tuple(num_bytes * -(-count // block) for count in counts)
    assert fit_size(sizes, odd) == (Term(weight, num_bytes / block),)


def test_the_scales_of_a_fused_weight_are_found():
    counts = [d.H * d.A * d.D + 2 * d.H * d.K * d.D for d in SHAPES]
    found = fit_size(tuple(-(-count // 64) for count in counts), SHAPES)
    assert found == (Term("HAD", 1 / 64), Term("HKD", 2 / 64))


def traced_dimensions(architecture, sizes):
    tp = degree(architecture, sizes)
    is_whole = tp == parting(architecture, sizes) == 1
    tuned = {"method": "lora", "adapter": make_adapter(rank=sizes.rank)} if is_whole else {}
    job = make_job(
        model=small_model(architecture, sizes, num_layers=1),
        seq_len=sizes.seq_len,
        global_batch=sizes.micro_batch,
        **tuned,
    )
    chunk_tokens, ep = sizes.micro_batch * sizes.seq_len // 5, parting(architecture, sizes)
    found = dimensions(job, micro_batch=sizes.micro_batch, chunk_tokens=chunk_tokens, tp=tp, ep=ep)
    return found._replace(r=round(found.r * share_received(sizes)))


@pytest.mark.parametrize("sizes", TRACED[:3])
def test_sizes_of_a_cut_model_are_those_of_one_device(sizes):
    """But for the residual stream: its tokens are parted, and its width is whole."""
    whole, part = (traced_dimensions(name, sizes) for name in ("llama", "llama-tp"))
    assert [getattr(part, d) for d in "BSFAKDVC"] == [getattr(whole, d) for d in "BSFAKDVC"]
    assert part.n * degree("llama-tp", sizes) == part.B * part.S
    assert whole.n == 0


def products_alike(shapes):
    """List the products that no coefficient tells apart over these shapes."""
    alike = {}
    for name in (t + w for t in TOKEN_FACTORS for w in WIDTH_FACTORS):
        values = [value(name, dims) for dims in shapes]
        if not all(values):
            continue
        alike.setdefault(tuple(Fraction(v, values[0]) for v in values), []).append(name)
    return [names for names in alike.values() if len(names) > 1]


@pytest.mark.parametrize(
    "architecture",
    ["llama", "mixtral", "qwen3_moe", "llama-tp", "gemma2-tp", "mixtral-ep", "qwen3_moe-ep"],
)
@pytest.mark.parametrize("number", [3, len(TRACED)])
def test_no_two_products_grow_alike_over_the_traced_shapes(number, architecture):
    """A rank of eight times the micro-batch, say, would make formulas that hold nowhere else."""
    shapes = tuple(traced_dimensions(architecture, t) for t in TRACED[:number])
    for names in products_alike(shapes):
        # Mixtral's MLP is its experts: F and M are one number there.
        one_width = [
            name.replace("M", "F") if "mixtral" in architecture else name for name in names
        ]
        assert len({name.replace("C", "BS") for name in one_width}) == 1, names
