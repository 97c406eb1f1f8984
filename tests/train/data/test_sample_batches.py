import random
from collections import Counter

import pytest
import torch
from tests.train.data.conftest import make_chats, make_texts, prepared_from, write_jsonl

from brimful.train.data.batches import START, DataPosition
from brimful.train.data.encoders.base import Sample
from brimful.train.data.rows import RowShape
from brimful.train.data.sample_batches import FileWindows, SampleBatches
from brimful.train.data.samples import map_samples, write_samples
from brimful.train.data.splitting import content_hash, plain_threshold

pytestmark = pytest.mark.torch

LAYOUTS = {
    "wrapped": ({"packing": "wrapped", "seq_len": 32}, {"heldout_share": 0.2}),
    "none": ({"packing": "none"}, {}),
    "documents": ({"packing": "documents"}, {}),
    "chat": ({"packing": "documents", "task": "chat"}, {}),
    "streamed wrapped": ({"packing": "wrapped"}, {"streaming": True, "shuffle_buffer": 16}),
    "streamed none": ({"packing": "none"}, {"streaming": True, "shuffle_buffer": 7}),
    "streamed documents": ({"packing": "documents"}, {"streaming": True, "shuffle_buffer": 16}),
    "streamed chat": ({"packing": "none", "task": "chat"}, {"streaming": True}),
}


@pytest.fixture
def open_layout(tmp_path):
    write_jsonl(tmp_path / "text.jsonl", make_texts(60))
    write_jsonl(tmp_path / "chat.jsonl", make_chats(60))

    def open_it(layout, *, micro_batch=2):
        job, source = LAYOUTS[layout]
        path = tmp_path / ("chat.jsonl" if "task" in job else "text.jsonl")
        return prepared_from(
            path, tmp_path / "cache", micro_batch=micro_batch, source=source, **job
        )

    return open_it


def same(one, other):
    return all(
        (a is None and b is None) or torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resumed_run_sees_the_very_same_batches(open_layout, layout):
    steps, positions = [], [START]
    batches = open_layout(layout).batches
    for _ in range(40):
        step, following = batches.step_at(positions[-1])
        steps.append(step)
        positions.append(following)
    assert positions[-1].epoch >= 1, "the steps must go on into another pass"
    for number in (0, 1, 7, 18, 33):
        # From nothing but the position, as another process would.
        step, following = open_layout(layout).batches.step_at(positions[number])
        assert all(map(same, step, steps[number]))
        assert following == positions[number + 1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_micro_batch_changes_neither_rows_nor_order(open_layout, layout):
    def rows(micro_batch):
        position, found = START, []
        batches = open_layout(layout, micro_batch=micro_batch).batches
        for _ in range(12):
            step, position = batches.step_at(position)
            found.append(
                [
                    [pair for pair in zip(*pair_of_rows, strict=True) if pair != (0, -100)]
                    for batch in step
                    for pair_of_rows in zip(
                        batch.inputs.tolist(), batch.labels.tolist(), strict=True
                    )
                ]
            )
        return found, position

    assert rows(1) == rows(2) == rows(4)


def write_numbered(folder, lengths):
    write_samples(
        (Sample([number] * length, [-100] * length) for number, length in enumerate(lengths)),
        folder,
        vocab_size=10**6,
    )
    return map_samples(folder, vocab_size=10**6)


@pytest.mark.parametrize("packed", [False, True])
def test_a_pass_sees_every_sample_once_and_the_next_in_another_order(tmp_path, packed):
    rng = random.Random(0)  # noqa: S311
    num_samples = 5000
    samples = write_numbered(tmp_path, [rng.randint(1, 30) for _ in range(num_samples)])
    windows = FileWindows(samples, seq_len=32, packed=packed, seed=3)
    orders, rows_of = [], []
    for epoch in range(2):
        index, rows = 0, []
        while True:
            window = windows.window_at(epoch, index)
            rows += [[int(s.inputs[0]) for s in window.read(row)] for row in window.rows]
            if window.following == (epoch + 1, 0):
                break
            assert window.following[0] == epoch
            index = window.following[1]
        orders.append([number for row in rows for number in row])
        rows_of.append(rows)
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(num_samples))
    assert orders[0] != orders[1]
    if packed:
        filled = sum(len(samples.sample(n).inputs) for n in range(num_samples))
        assert filled / (32 * len(rows_of[0])) > 0.97
        # Packing begins with the longest; the rows must not.
        lengths = [samples.num_tokens(row[0]) for row in rows_of[0][:1000]]
        assert min(lengths[:20]) < max(lengths) - 4


def test_steps_span_passes_without_losing_a_row(tmp_path):
    samples = write_numbered(tmp_path, [3] * 10)
    shape = RowShape(seq_len=8, pad_id=0, answer="tokens", whole=False)
    windows = FileWindows(samples, seq_len=8, packed=False, seed=1)
    batches = SampleBatches(windows, shape, global_batch=4, micro_batch=1)
    position, seen = START, []
    for _ in range(5):
        rows, position = batches.rows_at(position)
        seen += [int(row[0].inputs[0]) for row in rows]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert position == DataPosition(epoch=2, index=0)


@pytest.mark.parametrize("packing", ["wrapped", "none", "documents"])
def test_a_streamed_pass_sees_every_training_token_once(tmp_path, packing):
    texts = [record["text"] for record in make_texts(80)]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    source = {"streaming": True, "shuffle_buffer": 9, "heldout_share": 0.2}
    prepared = prepared_from(path, tmp_path / "cache", packing=packing, source=source)
    kept = [text for text in texts if content_hash(text) >= plain_threshold(0.2)]
    assert 50 < len(kept) < 80
    expected = Counter(token for text in kept for token in prepared.coder.document_ids(text))
    found, num_windows, following = Counter(), 0, (0, 0)
    while following[0] == 0:
        window = prepared.batches.windows.window_at(*following)
        samples = [sample for row in window.rows for sample in window.read(row)]
        part = "labels" if packing == "wrapped" else "inputs"
        found.update(token for s in samples for token in getattr(s, part).tolist() if token >= 0)
        following, num_windows = window.following, num_windows + 1
    if packing == "wrapped":
        # All but the first token of each window are somebody's label.
        assert found.total() == expected.total() - num_windows
        assert not found - expected
    else:
        assert found == expected


def test_the_stream_is_shuffled_within_its_buffer_and_anew_in_each_pass(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": f"{n:04d}"} for n in range(200)])
    source = {"streaming": True, "shuffle_buffer": 50, "heldout_share": 0.1}
    prepared = prepared_from(path, tmp_path / "cache", packing="none", source=source)
    windows = prepared.batches.windows

    def numbers(epoch, index):
        window = windows.window_at(epoch, index)
        decode = prepared.coder.tokenizer.decode
        rows = [decode(row[0].inputs[:-1].tolist()) for row in map(window.read, window.rows)]
        return list(map(int, rows)), window.following

    first, following = numbers(0, 0)
    assert len(first) == 50
    assert first != sorted(first)
    second, _ = numbers(*following)
    assert max(first) < min(second)
    again, _ = numbers(1, 0)
    assert sorted(again) == sorted(first)
    assert again != first
