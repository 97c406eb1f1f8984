import json
import math

import msgspec
import pytest

from brimful.errors import FileFormatError
from brimful.train.data.prepare import Summary
from brimful.train.metrics import append_row, open_metrics, read_metrics, write_data_summary
from brimful.train.tally import tally_of
from brimful.values.run_files import EvalRow, TrainRow


def row(step, loss=1.5):
    return TrainRow(
        step=step, loss=loss, learning_rate=0.1, grad_norm=2.0, tokens_per_s=3.0, step_s=4.0
    )


def write_rows(path, rows, *, last_step=0):
    with open_metrics(path, last_step=last_step) as file:
        for each in rows:
            append_row(file, each)


def test_rows_have_the_documented_keys(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_rows(path, [row(1), EvalRow(step=1, heldout_loss=2.5)])
    train, held = [json.loads(line) for line in path.read_text().splitlines()]
    assert train == {
        "kind": "train",
        "step": 1,
        "loss": 1.5,
        "learning_rate": 0.1,
        "grad_norm": 2.0,
        "tokens_per_s": 3.0,
        "step_s": 4.0,
    }
    assert held == {"kind": "eval", "step": 1, "heldout_loss": 2.5}


def test_floats_come_back_to_the_last_bit(tmp_path):
    path = tmp_path / "metrics.jsonl"
    losses = [math.pi, 1 / 3, 5e-324, 1.7976931348623157e308, 0.1 + 0.2]
    write_rows(path, [row(step, loss) for step, loss in enumerate(losses)])
    assert [each.loss for each in read_metrics(path)] == losses


def test_rows_after_the_checkpoint_are_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_rows(path, [row(1), row(2), EvalRow(step=2, heldout_loss=1), row(3), row(4)])
    write_rows(path, [row(3, loss=9)], last_step=2)
    expected = (row(1), row(2), EvalRow(step=2, heldout_loss=1), row(3, loss=9))
    assert read_metrics(path) == expected


def test_a_row_that_a_kill_cut_in_half_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_rows(path, [row(1), row(2)])
    path.write_bytes(path.read_bytes() + b'{"kind":"train","st')
    assert read_metrics(path) == (row(1), row(2))
    write_rows(path, [row(3)], last_step=2)
    assert read_metrics(path) == (row(1), row(2), row(3))


def test_a_new_run_starts_an_empty_curve(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_rows(path, [row(1)])
    write_rows(path, [])
    assert path.read_bytes() == b""


@pytest.mark.parametrize("line", ['{"kind":"odd","step":1}', "nonsense", "\udcff"])
def test_a_broken_row_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    write_rows(path, [row(1)])
    path.write_bytes(path.read_bytes() + line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(FileFormatError, match="line 2 is no row"):
        read_metrics(path)


def test_the_data_summary_has_the_documented_keys(tmp_path):
    told = Summary(
        source="a book",
        num_train_samples=None,
        num_train_tokens=10,
        num_train_targets=None,
        num_heldout_tokens=2,
        unigram_entropy=0.5,
        num_truncated=3,
        skipped=(),
        template="",
    )
    write_data_summary(tmp_path / "data.json", told)
    assert json.loads((tmp_path / "data.json").read_text()) == {
        "schema": "brimful.data/1",
        "unigram_entropy": 0.5,
        "num_train_tokens": 10,
        "num_heldout_tokens": 2,
        "source": "a book",
        "num_skipped": 0,
        "num_truncated": 3,
    }


OLD = (
    '{"kind":"train","step":1,"loss":1.5,"learning_rate":0.1,"grad_norm":2.0,'
    '"tokens_per_s":3.0,"step_s":4.0}\n{"kind":"eval","step":1,"heldout_loss":2.5}\n'
)


def test_a_curve_of_the_first_version_is_still_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(OLD)
    train, held = read_metrics(path)
    assert train == row(1)
    assert not train.skipped
    assert (train.loss_scale, train.mfu, train.used_bytes) == (None, None, None)
    assert (held.perplexity, held.accuracy, held.is_best) == (None, None, False)
    assert tally_of((train, held)).num_targets == 12
    write_rows(path, [], last_step=1)
    assert path.read_text() == OLD


def test_what_is_unknown_is_left_out_of_the_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    skipped = msgspec.structs.replace(
        row(1), loss=None, grad_norm=None, loss_scale=8.0, skipped=True, mfu=0.25, peak_bytes=7
    )
    write_rows(path, [skipped, row(2)])
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert first["loss"] is None
    assert (first["loss_scale"], first["skipped"], first["mfu"]) == (8.0, True, 0.25)
    assert not {"loss_scale", "skipped", "mfu", "hfu", "used_bytes"} & set(second)
    assert read_metrics(path) == (skipped, row(2))


@pytest.mark.parametrize("key", ["loss", "grad_norm"])
def test_a_number_may_be_missing_in_skipped_steps_only(tmp_path, key):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({**json.loads(OLD.splitlines()[0]), key: None}) + "\n")
    with pytest.raises(FileFormatError, match=r"line 1 is no row: loss and grad_norm must be num"):
        read_metrics(path)
