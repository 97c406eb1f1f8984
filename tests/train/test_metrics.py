import json
import math

import pytest

from brimful.errors import FileFormatError
from brimful.run_files import EvalRow, TrainRow
from brimful.train.data.tokens import TokenSet
from brimful.train.metrics import (
    append_row,
    open_metrics,
    read_metrics,
    write_data_summary,
)


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
    tokens = TokenSet(
        schema="brimful.tokens/1",
        fingerprint="f",
        tokens_hash="h",
        source="a book",
        vocab_size=300,
        num_train_tokens=10,
        num_heldout_tokens=2,
        unigram_entropy=0.5,
    )
    write_data_summary(tmp_path / "data.json", tokens)
    assert json.loads((tmp_path / "data.json").read_text()) == {
        "schema": "brimful.data/1",
        "unigram_entropy": 0.5,
        "num_train_tokens": 10,
        "num_heldout_tokens": 2,
        "source": "a book",
    }
