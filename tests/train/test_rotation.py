import shutil

import pytest
from tests.train.programs import build, progress

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def save_in(plan_with):
    """Save steps one after another, as a run does; a step may bring its held-out loss."""
    from brimful.train.checkpoint import save_checkpoint
    from brimful.train.rotation import Kept, remove_old

    plan = plan_with()
    program = build(plan)

    def save(root, losses, *, num_newest, best=False):
        for step, loss in losses.items():
            save_checkpoint(root, program, progress(plan, step, heldout_loss=loss))
            remove_old(root, Kept(num_newest=num_newest, best=best))
        return sorted(int(path.name[-9:].lstrip("-")) for path in root.glob("step-*"))

    return save


def test_the_newest_are_kept_and_leftovers_go(save_in, tmp_path):
    from brimful.train.checkpoint import newest_checkpoint

    (tmp_path / ".step-00000004.tmp").mkdir()
    (tmp_path / ".step-00000004.tmp" / "__0_0.distcp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("the user's own")
    save_in(tmp_path, dict.fromkeys((5, 10, 100, 100_000_000)), num_newest=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["notes.txt", "step-00000100", "step-100000000"]
    assert newest_checkpoint(tmp_path) == tmp_path / "step-100000000"


@pytest.mark.parametrize(("num_newest", "kept"), [(1, [5]), (3, [3, 4, 5]), (9, [1, 2, 3, 4, 5])])
def test_as_many_are_kept_as_was_asked(save_in, tmp_path, num_newest, kept):
    assert save_in(tmp_path, dict.fromkeys(range(1, 6)), num_newest=num_newest) == kept


def test_the_best_stays_until_a_better_one_comes(save_in, tmp_path):
    losses = {1: 3.0, 2: 2.5, 3: 2.7, 4: None, 5: 2.6}
    assert save_in(tmp_path, losses, num_newest=1, best=True) == [2, 5]
    assert save_in(tmp_path, {6: 2.5}, num_newest=1, best=True) == [2, 6]
    assert save_in(tmp_path, {7: 2.4, 8: 2.9}, num_newest=1, best=True) == [7, 8]


def test_without_a_judgement_the_best_is_none(save_in, tmp_path):
    from brimful.train.rotation import best_checkpoint

    assert best_checkpoint(tmp_path) is None
    assert save_in(tmp_path, {1: None, 2: None}, num_newest=1, best=True) == [2]
    assert best_checkpoint(tmp_path) is None


def test_damaged_newer_ones_never_push_the_last_good_one_out(save_in, tmp_path):
    from brimful.train.checkpoint import newest_checkpoint

    save_in(tmp_path, dict.fromkeys((1, 2, 3)), num_newest=3)
    for step in (2, 3):
        (tmp_path / f"step-0000000{step}" / "__0_0.distcp").unlink()
    save_in(tmp_path, {1: None}, num_newest=1)
    assert newest_checkpoint(tmp_path) == tmp_path / "step-00000001"
    shutil.rmtree(tmp_path / "step-00000003")
    assert save_in(tmp_path, {4: None}, num_newest=1) == [2, 4]
