from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.train.data.encoders.base import IGNORED
from brimful.train.data.encoders.text import text_encoder
from brimful.train.data.packing import pack
from brimful.train.data.rows import PAD_MULTIPLE, RowShape, padded_width, to_batches
from brimful.train.data.samples import Arrays

pytestmark = pytest.mark.torch

SHAPE = RowShape(seq_len=40, pad_id=7, answer="tokens", whole=False)


def make_sample(number, length):
    """Tokens that say which document they are of, and labels that say which token follows."""
    inputs = number * 100 + np.arange(length)
    return Arrays(inputs, np.append(inputs[1:], -100))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 5))
def test_packing_loses_no_token_and_mixes_no_documents(lengths, micro_batch):
    samples = [make_sample(number, length) for number, length in enumerate(lengths, start=1)]
    rows = [[samples[item] for item in row] for row in pack(lengths, capacity=40)]
    found = []
    for batch in to_batches(rows, SHAPE, micro_batch=micro_batch):
        assert len(batch.inputs) <= micro_batch
        for inputs, labels, segments in zip(*(t.tolist() for t in batch[:3]), strict=True):
            num_real = sum(number > 0 for number in segments)
            assert all(segments[:num_real])
            assert set(segments[num_real:]) <= {0}
            assert set(inputs[num_real:]) <= {7}
            assert set(labels[num_real:]) <= {-100}
            for document in range(1, max(segments) + 1):
                places = [place for place, number in enumerate(segments) if number == document]
                assert places == list(range(places[0], places[-1] + 1))
                found.append([inputs[place] for place in places])
                assert [labels[place] for place in places] == [*found[-1][1:], -100]
    assert sorted(found) == sorted(sample.inputs.tolist() for sample in samples)


@given(st.integers(1, 100), st.integers(1, 100))
def test_rows_are_padded_to_eights_and_never_above_the_longest(longest, seq_len):
    width = padded_width(min(longest, seq_len), seq_len)
    assert min(longest, seq_len) <= width <= seq_len
    assert width == seq_len or (width % PAD_MULTIPLE == 0 and width < longest + PAD_MULTIPLE)


def test_each_micro_batch_is_as_wide_as_its_own_longest_row():
    rows = [[make_sample(number, length)] for number, length in enumerate((3, 30, 9, 25), start=1)]
    batches = to_batches(rows, SHAPE, micro_batch=2)
    assert [tuple(batch.inputs.shape) for batch in batches] == [(2, 32), (2, 16)]


def test_a_class_is_a_number_per_row_and_a_target_a_text_of_its_own():
    rows = [[Arrays(np.array([1, 2, 3]), np.array([label]))] for label in (1, 0)]
    shape = RowShape(seq_len=40, pad_id=0, answer="class", whole=False)
    (batch,) = to_batches(rows, shape, micro_batch=2)
    assert batch.labels.tolist() == [1, 0]
    rows = [[Arrays(np.array([1, 2, 3]), np.arange(5, 5 + length))] for length in (9, 2)]
    shape = RowShape(seq_len=12, pad_id=0, answer="target", whole=False)
    (batch,) = to_batches(rows, shape, micro_batch=2)
    assert batch.inputs.shape == (2, 8)
    assert batch.labels.tolist()[1] == [5, 6, *[-100] * 10]


@pytest.mark.parametrize("length", [2, 5, 8, 9])
def test_of_a_text_each_token_learns_the_next_one_across_its_pieces(length):
    """As whoever writes it down would: of a text of n tokens n - 1 are learnt, whatever the cut."""
    ids = list(range(10, 10 + length))
    coder = SimpleNamespace(document_ids=lambda _text: ids)
    pieces = text_encoder("text").encode("any", coder, 4).samples
    pairs = [pair for piece in pieces for pair in zip(piece.inputs, piece.labels, strict=True)]
    learnt = [(token, label) for token, label in pairs if label != IGNORED]
    assert learnt == [(n, n + 1) for n in ids[:-1]]
    assert all(len(piece.inputs) <= 4 for piece in pieces)
