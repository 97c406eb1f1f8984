"""Which workspaces of kernels a profile at a model's own widths keeps."""

from types import SimpleNamespace

import numpy as np
import pytest

from brimful.pretend.reading import FITTED_BUFFERS, OF_TOKENS
from brimful.simulate.traced import fitted_of

TOKENS = {"step 1 backward": 1024, "step 2 backward": 640}
OTHER = "splits of the keys"


def tape(*rows):
    """Return what is asked of a recording: each row its phase, operation and bytes."""
    phases, ops = list(TOKENS), list(dict.fromkeys(row[1] for row in rows))
    return SimpleNamespace(
        phases=phases,
        ops=ops,
        phase=np.array([row[0] for row in rows]),
        op=np.array([ops.index(row[1]) for row in rows]),
        num_bytes=np.array([row[2] for row in rows]),
    )


@pytest.mark.parametrize(
    ("second", "kept"),
    [(640 * 96, OF_TOKENS), (640 * 96 + 256, ())],
    ids=["as-many-for-each-token", "tiles"],
)
def test_what_every_token_has_as_much_of_is_kept(second, kept):
    (name,) = OF_TOKENS
    rows = tape((0, name, 1024 * 96), (1, name, second), (0, OTHER, 512))
    assert fitted_of(rows, TOKENS) == (*FITTED_BUFFERS, *kept)


def test_a_tape_without_them_has_those_of_all_widths():
    assert fitted_of(tape((0, OTHER, 512)), TOKENS) == FITTED_BUFFERS
