import pytest

from brimful.cost.profiles import Dimensions, Term
from brimful.simulate.fit import add_terms, fit_size

pytestmark = pytest.mark.torch

SHAPES = (
    Dimensions(B=3, S=192, H=264, F=328, A=6, K=2, D=40, V=1096, P=384, C=192),
    Dimensions(B=5, S=288, H=408, F=712, A=8, K=4, D=56, V=1544, P=672, C=480),
    Dimensions(B=7, S=96, H=504, F=904, A=15, K=3, D=24, V=2312, P=480, C=224),
    Dimensions(B=2, S=480, H=232, F=1208, A=15, K=5, D=88, V=3336, P=544, C=320),
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


def test_equal_products_are_collected():
    total = add_terms([(Term("BSH", 4.0),), (Term("BSH", 2.0), Term("V", 1.0)), (Term("V", -1.0),)])
    assert total == (Term("BSH", 6.0),)
