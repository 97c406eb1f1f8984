"""Forms over a grid: kinds of blocks of which no event is one add nothing."""

import numpy as np

from brimful.cost.levels import Forms, surface


def test_pieces_of_kinds_that_no_event_is_of_add_nothing():
    """Of DeepSeek-V3 dense and sparse blocks have pieces; where nothing is gathered none comes."""
    rng = np.random.default_rng(3)
    forms = Forms(
        plain=rng.random((4, 3, 2)),
        pieces=rng.random((4, 2, 5)),
        least=np.zeros(4),
        most=np.full(4, 9.0),
    )
    pieces, counts = rng.random((5, 6)), np.arange(8.0)
    alone = surface(forms, counts, pieces)
    beside = surface(forms, counts, np.concatenate([pieces, rng.random((5, 6))]))
    np.testing.assert_array_equal(alone.plain, beside.plain)
    np.testing.assert_array_equal(alone.spread, beside.spread)
