"""A long run's figures: what grows is told, what does not is not."""

import soak_part

MADE = {"num_steps": 100, "command": ("train",), "num_evals": 5}


def test_what_grows_is_told():
    rows = [
        soak_part.row_of("resident", [(i, 1000 + i) for i in range(1, 101)], **MADE),
        soak_part.row_of("disk", [(i, 1000) for i in range(1, 101)], **MADE),
    ]
    assert (rows[0].num_warm_up, rows[0].num_samples) == (20, 80)
    assert [text.split(":")[0] for text in soak_part.summarize(rows).missed] == ["resident"] * 2


def test_what_is_unsteady_while_it_warms_up_is_not():
    samples = [(i, 10 if i <= 20 else 1000) for i in range(1, 101)]
    row = soak_part.row_of("resident", samples, **MADE)
    assert soak_part.summarize([row]).missed == ()


def test_a_checkpoint_that_is_being_written_is_not_counted(tmp_path):
    assert soak_part._disk(tmp_path / "none") is None
    for name in ("step-00000020", "step-00000040"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_bytes(b"x" * 8)
    assert soak_part._disk(tmp_path) == (40, 16)
    (tmp_path / ".step-00000060.tmp").mkdir()
    assert soak_part._disk(tmp_path) is None
