"""Which tokens are hidden: by the seed and the place of a row, as transformers' collator does."""

import numpy as np

from brimful.train.data.batches import START, TokenBatches
from brimful.train.data.hiding import Hiding

HIDING = Hiding(mask_id=4, marks=(0, 1), num_words=1000, seed=7)


def batches(micro_batch):
    tokens = np.random.default_rng(1).integers(0, 1000, 3001).astype(np.uint16)
    return TokenBatches(
        tokens=tokens, seq_len=100, global_batch=8, micro_batch=micro_batch, seed=7, hiding=HIDING
    )


def test_shares_are_those_of_the_collator():
    rows = np.random.default_rng(2).integers(5, 1000, (40, 1000))
    rows[:, ::10] = 1
    inputs, labels = HIDING.hide(rows, [(0, row) for row in range(40)])
    hidden = labels != -100
    assert not hidden[:, ::10].any()
    assert (labels[hidden] == rows[hidden]).all()
    assert (inputs[~hidden] == rows[~hidden]).all()
    num = hidden.sum()
    assert abs(num / rows[:, 1:].size - 0.15 * 0.9) < 0.005
    assert abs((inputs[hidden] == 4).sum() / num - 0.8) < 0.02
    kept = (inputs[hidden] == rows[hidden]).sum() / num
    assert abs(kept - 0.1) < 0.02


def test_a_step_is_the_same_however_it_is_cut_and_wherever_it_begins():
    import torch

    position, steps = START, []
    for _ in range(5):  # over the end of a pass
        whole, following = batches(8).step_at(position)
        parts, _ = batches(2).step_at(position)
        for field in ("inputs", "labels"):
            together = torch.cat([getattr(part, field) for part in parts])
            assert torch.equal(together, getattr(whole[0], field))
        steps.append(whole[0].labels)
        position = following
    assert not any(torch.equal(steps[0], other) for other in steps[1:])


def test_another_pass_hides_other_tokens():
    rows = np.random.default_rng(2).integers(5, 1000, (1, 200))
    first, again = (HIDING.hide(rows, [(epoch, 3)])[1] for epoch in (0, 1))
    assert (first != again).any()


def test_a_short_row_has_one_hidden_unless_it_is_marks_alone():
    rows = np.array([[7, 1]] * 40 + [[1, 0]])
    _, labels = HIDING.hide(rows, [(0, row) for row in range(41)])
    assert (labels[:40] == [7, -100]).all()
    assert (labels[40] == -100).all()
