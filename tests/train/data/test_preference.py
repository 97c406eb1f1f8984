import json
from itertools import pairwise

import numpy as np
import pytest
from tests.pairs import PREFERENCE
from tests.train.data.conftest import prepared_from, write_jsonl

from brimful.errors import DataError
from brimful.train.data.batches import START
from brimful.train.data.coder import own_coder
from brimful.train.data.encoders.preference import (
    READ_CHOSEN,
    READ_REJECTED,
    SCORED_CHOSEN,
    SCORED_REJECTED,
    preference_encoder,
)
from brimful.train.data.pairs import longer_row, pair_batch
from brimful.train.data.preview import preview
from brimful.train.data.records import BadRecordError
from brimful.train.data.samples import Arrays

pytestmark = pytest.mark.torch

ASK = {"role": "user", "content": "one two"}
GOOD = {"role": "assistant", "content": "alpha beta"}
BAD = {"role": "assistant", "content": "gamma"}
PLAIN = {"prompt": "one two ", "chosen": "alpha beta", "rejected": "gamma"}
DPO = {"task": "dpo", "packing": "none", "preference": PREFERENCE}


@pytest.fixture(scope="module")
def coder(tokenizer_json):
    return own_coder(tokenizer_json, None)


def encoded(record, coder, max_tokens=200):
    encoder = preference_encoder()
    return encoder.encode(encoder.parse(record), coder, max_tokens)


def sides(sample):
    """Return both rows of a sample: ids, and which of them are scored."""
    ids, labels = np.array(sample.inputs), np.array(sample.labels)
    is_chosen = (labels == READ_CHOSEN) | (labels == SCORED_CHOSEN)
    is_scored = (labels == SCORED_CHOSEN) | (labels == SCORED_REJECTED)
    assert ((labels == READ_REJECTED) | (labels == SCORED_REJECTED) == ~is_chosen).all()
    assert all(a >= b for a, b in pairwise(is_chosen.tolist()))
    return [(ids[side].tolist(), is_scored[side].tolist()) for side in (is_chosen, ~is_chosen)]


def texts(sample, coder):
    """Return of both rows what is read, and what is scored."""
    return [
        tuple(
            coder.tokenizer.decode([t for t, s in zip(ids, scored, strict=True) if s is wanted])
            for wanted in (False, True)
        )
        for ids, scored in sides(sample)
    ]


def test_texts_are_laid_end_to_end_and_closed(coder):
    (sample,) = encoded(PLAIN, coder).samples
    end = coder.tokenizer.eos_token
    rows = texts(sample, coder)
    assert [read + scored for read, scored in rows] == [
        f"one two alpha beta{end}",
        f"one two gamma{end}",
    ]
    assert [scored.strip() for _, scored in rows] == [f"alpha beta{end}", f"gamma{end}"]


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": [ASK], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
        {"prompt": "one two", "chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
        {"prompt": "one two", "chosen": [GOOD], "rejected": [BAD]},
    ],
    ids=["lists", "no prompt", "prompt twice", "prompt as text"],
)
def test_messages_go_through_the_template_and_answers_are_scored(record, coder):
    (sample,) = encoded(record, coder).samples
    end = coder.tokenizer.eos_token
    rows = texts(sample, coder)
    assert [scored for _, scored in rows] == [f"alpha beta{end}", f"gamma{end}"]
    assert all("user\none two" in read for read, _ in rows)


def test_a_prompt_that_is_missing_is_what_both_texts_begin_with(coder):
    end = coder.tokenizer.eos_token
    whole = {"chosen": "one two: alpha beta", "rejected": "one two: alpine"}
    (sample,) = encoded(whole, coder).samples
    assert [scored.strip() for _, scored in texts(sample, coder)] == [
        f"alpha beta{end}",
        f"alpine{end}",
    ]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"prompt": "a", "chosen": "b"}, "no field 'rejected'"),
        ({"prompt": "a", "chosen": "b", "rejected": [BAD]}, "both must be text, or both lists"),
        ({"prompt": 3, "chosen": "b", "rejected": "c"}, "field 'prompt' is the number 3"),
        ({"prompt": "a", "chosen": "", "rejected": "c"}, "'chosen' holds no answer"),
        ({"chosen": [ASK], "rejected": [ASK, BAD]}, "'chosen' holds no answer of the assistant"),
        ({"chosen": [{"role": "x", "content": ""}], "rejected": [BAD]}, "has the role 'x'"),
    ],
)
def test_what_is_no_pair_is_said(record, reason):
    with pytest.raises(BadRecordError, match=reason):
        preference_encoder().parse(record)


def test_a_bad_record_is_named_by_file_and_line(tmp_path):
    path = write_jsonl(tmp_path / "pairs.jsonl", [PLAIN, {**PLAIN, "rejected": None}])
    with pytest.raises(DataError, match=r"pairs.jsonl line 2: field 'rejected' is null"):
        prepared_from(path, tmp_path / "cache", **DPO)


def test_pairs_of_equal_answers_and_those_cut_away_are_dropped(coder):
    same = encoded({**PLAIN, "rejected": PLAIN["chosen"]}, coder)
    assert (same.samples, same.dropped) == ([], "the two answers are the same")
    num_read = sides(encoded(PLAIN, coder).samples[0])[0][1].index(True)
    short = encoded(PLAIN, coder, max_tokens=num_read)
    assert (short.samples, short.dropped) == ([], "no answer within seq_len")
    assert short.truncated
    assert encoded(PLAIN, coder, max_tokens=num_read + 1).samples


def make_records(number=60):
    return [
        {"prompt": f"{n} one ", "chosen": "alpha " * (1 + n % 7), "rejected": "beta " * (1 + n % 3)}
        for n in range(number)
    ]


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_a_step_holds_whole_pairs_the_preferred_answer_first(tmp_path, format_):
    path = write_jsonl(tmp_path / "a.jsonl", make_records())
    if format_ == "parquet":
        arrow = pytest.importorskip("pyarrow")
        table = arrow.Table.from_pylist(make_records())
        path = tmp_path / "a.parquet"
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    prepared = prepared_from(path, tmp_path / "cache", **DPO)
    batches, _ = prepared.batches.step_at(START)
    assert [len(batch.labels) for batch in batches] == [2, 2]
    decode = prepared.coder.tokenizer.decode
    for batch in batches:
        assert batch.inputs.shape == batch.segments.shape == (2, 2, batch.inputs.shape[2])
        assert batch.labels.tolist() == [0, 0]
        assert batch.reference is None
        for rows, marks in zip(batch.inputs, batch.segments, strict=True):
            chosen, rejected = (decode(r[m == 2]) for r, m in zip(rows, marks, strict=True))
            assert "alpha" in chosen
            assert "beta" in rejected
            assert torch_equal(rows[0][marks[0] == 1], rows[1][marks[1] == 1])
    longest = [int((batch.segments > 0).sum(2).max()) for batch in batches]
    assert longest == sorted(longest, reverse=True)
    assert prepared.summary.unigram_entropy == pytest.approx(np.log(2))


def torch_equal(one, other):
    return one.tolist() == other.tolist()


def test_a_preview_shows_both_rows_with_what_is_scored(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", make_records())
    prepared = prepared_from(path, tmp_path / "cache", **DPO)
    lines = preview(prepared, number=1, width=80).splitlines()
    chosen = lines.index(next(line for line in lines if line.startswith("chosen: ")))
    rejected = lines.index(next(line for line in lines if line.startswith("rejected: ")))
    for start, stop, word in ((chosen, rejected, "alpha"), (rejected, len(lines), "beta")):
        shown = lines[start + 1 : stop]
        scored = [line for line in shown if line.startswith(" loss | ")]
        assert any(word in line for line in scored)
        assert not any(word in line for line in shown if line not in scored)
    assert "of padding" in lines[chosen]


def test_what_the_reference_said_goes_with_its_pair():
    def pair(number, length, reference):
        ids = np.arange(length) + 100 * number
        labels = np.array([READ_CHOSEN, SCORED_CHOSEN] + [SCORED_REJECTED] * (length - 2))
        return Arrays(ids, labels, reference)

    told = [pair(1, 5, np.array([1.0, 2.0])), pair(2, 9, np.array([3.0, 4.0]))]
    batch = pair_batch(told, width=8, pad_id=0)
    assert batch.reference.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert [longer_row(one) for one in told] == [3, 7]
    assert batch.inputs[1, 1].tolist() == [*range(202, 209), 0]
    assert pair_batch([told[0], told[1]._replace(reference=None)], width=8, pad_id=0)[3] is None


def test_a_json_array_is_read_as_lines_are(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(make_records()), "utf-8")
    lines = write_jsonl(tmp_path / "a.jsonl", make_records())
    one, other = (prepared_from(file, tmp_path / "cache", **DPO) for file in (path, lines))
    assert one.summary.num_train_samples == other.summary.num_train_samples > 40
    assert one.data_hash == other.data_hash
