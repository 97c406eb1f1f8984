"""Bad data, by what is wrong with it: each is named by file and place, and skipped if so asked."""

import gzip
import json
from pathlib import Path

import pytest
from tests.samples import make_model
from tests.train.data.conftest import VOCAB_SIZE, make_chats, make_texts, prepared_from
from tests.train.data.test_readers import write_csv, write_parquet

from brimful.errors import BrimfulError, DataError

TEXT = {"packing": "none"}
CHAT = {"task": "chat", "packing": "none"}
CLASSES = {
    "task": "sequence-classification",
    "packing": "none",
    "model": make_model(vocab_size=VOCAB_SIZE),
}
PAIRS = {"task": "seq2seq", "packing": "none"}
GOOD = {
    "text": make_texts(20),
    "chat": make_chats(20),
    "class": [{**record, "label": n % 2} for n, record in enumerate(make_texts(20))],
    "pair": [{"source": f"{n} one", "target": f"two {n}"} for n in range(20)],
}


def third(kind, line):
    """Lines of good records with a bad one in the third place."""
    lines = [json.dumps(record).encode() for record in GOOD[kind]]
    lines[2] = line if isinstance(line, bytes) else json.dumps(line).encode()
    return b"\n".join(lines)


def talk(*messages):
    return {"messages": [{"role": role, "content": text} for role, text in messages]}


RECORDS = [
    ("broken line", TEXT, third("text", b'{"text": "no end'), "it is no JSON"),
    ("no object", TEXT, third("text", [1]), "it is a list and must be an object"),
    ("not UTF-8", TEXT, third("text", b'{"text": "caf\xe9"}'), "it is not UTF-8 at byte 13"),
    ("no field", TEXT, third("text", {"txt": "x"}), r"no field 'text' \(it has 'txt'\)"),
    ("wrong type", TEXT, third("text", {"text": 3}), "'text' is the number 3 and must be text"),
    ("null", TEXT, third("text", {"text": None}), "'text' is null and must be text"),
    ("no messages", CHAT, third("chat", {"messages": []}), "has no messages"),
    ("no list", CHAT, third("chat", {"messages": "hi"}), "is text and must be a list"),
    ("no message", CHAT, third("chat", {"messages": ["hi"]}), "message 1 is text and must be an"),
    ("unknown role", CHAT, third("chat", talk(("user", "a"), ("bot", "b"))), "message 2 .* 'bot'"),
    ("no answer", CHAT, third("chat", talk(("user", "a"))), "no message in it is the assistant's"),
    ("empty answer", CHAT, third("chat", talk(("user", "a"), ("assistant", ""))), "is empty"),
    ("no content", CHAT, third("chat", talk(("user", "a"), ("assistant", 5))), "of message 2 is"),
    ("no shape", CHAT, third("chat", {"question": "a"}), "it has no 'messages', no 'conv"),
    ("no class", CLASSES, third("class", {"text": "a"}), "it has no field 'label'"),
    ("class out of range", CLASSES, third("class", {"text": "a", "label": 2}), "has 2 classes"),
    ("negative class", CLASSES, third("class", {"text": "a", "label": -1}), "is -1 and the model"),
    ("half a class", CLASSES, third("class", {"text": "a", "label": 0.5}), "must be a class"),
    ("unknown class", CLASSES, third("class", {"text": "a", "label": "good"}), "is 'good' and"),
    ("no target", PAIRS, third("pair", {"source": "a"}), "no field 'target'"),
    ("empty target", PAIRS, third("pair", {"source": "a", "target": ""}), "'target' is empty"),
]


@pytest.mark.torch
@pytest.mark.parametrize(("job", "content", "message"), [row[1:] for row in RECORDS],
                         ids=[row[0] for row in RECORDS])  # fmt: skip
def test_a_bad_record_is_named_by_file_and_line_or_skipped_and_counted(
    tmp_path, job, content, message
):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"^a.jsonl line 3: .*{message}.*; correct it, or"):
        prepared_from(path, tmp_path / "cache", **job)
    prepared = prepared_from(
        path, tmp_path / "cache", source={"on_bad_record": "skip", "heldout_share": 0.2}, **job
    )
    assert prepared.num_skipped == 1
    assert prepared.summary.skipped[0].first == "a.jsonl line 3"
    parts = json.loads((prepared.tokenizer_folder / "samples.json").read_text())
    assert parts["train"]["num_samples"] + parts["heldout"]["num_samples"] == 19


def _csv(path):
    write_csv(path, [{"content": "a"}, {"content": "b"}])


def _ragged_csv(path):
    path.write_text("text,label\na,1\nb,1,2\nc,0\n")


def _cut_parquet(path):
    write_parquet(path, make_texts(50))
    path.write_bytes(path.read_bytes()[:-20])


def _damage_gzip(path):
    packed = bytearray(gzip.compress(json.dumps(make_texts(500)).encode()))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = bytes(40)
    path.write_bytes(bytes(packed))


def _cut_gzip(path):
    path.write_bytes(gzip.compress(json.dumps(make_texts(500)).encode())[:-400])


FILES = [
    ("a.jsonl", lambda path: path.touch(), "holds 0 different records"),
    ("a.jsonl", lambda path: path.write_text("\n \n"), "holds 0 different records"),
    ("a.txt", lambda path: path.touch(), "is empty"),
    ("a.txt", lambda path: path.write_bytes(b"caf\xe9 " * 99), "is not UTF-8 at byte 3"),
    ("a.json", lambda path: path.touch(), "a.json is empty"),
    ("a.json", lambda path: path.write_text('[{"text": "a"},\n{"text": }]'), "a.json line 2"),
    ("a.json", lambda path: path.write_text('{"rows": []}'), "a.json line 1 begins an object"),
    ("a.json", lambda path: path.write_text("[" * 100_000), "a.json .*too deep|a.json line"),
    ("a.json", lambda path: path.write_bytes(b'["a",\n"\xe9"]'), "a.json line 2 is not UTF-8"),
    ("a.csv", _csv, "a.csv line 1 names the columns 'content' and 'text' is needed"),
    ("a.csv", lambda path: path.write_text("just words\nand more\n"), "a.csv line 1 names"),
    ("a.csv", lambda path: path.write_bytes(b"text\nok\ncaf\xe9\n"), "a.csv at or after line"),
    ("a.csv", lambda path: path.write_text('text\nok\n"open'), "a.csv at or after line"),
    ("a.csv", _ragged_csv, "a.csv line 3: it has 3 fields and the header 2"),
    ("a.parquet", _cut_parquet, "a.parquet cannot be read"),
    ("a.parquet", lambda path: path.touch(), "a.parquet cannot be read"),
    ("a.parquet", lambda path: write_parquet(path, [{"x": 1}]), "a.parquet names the columns 'x'"),
    ("a.json.gz", _cut_gzip, "a.json.gz cannot be read"),
    ("a.jsonl.gz", lambda path: path.write_bytes(b"no gzip"), "a.jsonl.gz after line 0 cannot"),
    ("a.jsonl.gz", _damage_gzip, "a.jsonl.gz after line"),
    ("a.json.gz", _damage_gzip, "a.json.gz cannot be read"),
    ("set", lambda path: path.mkdir(), "holds no .md, .py, .txt file"),
    ("nowhere.jsonl", lambda _: None, "does not exist"),
]


def _break_saved(path):
    path.mkdir()
    (path / "dataset_info.json").write_text("{")


@pytest.mark.parametrize(("name", "make", "message"), [*FILES,
    ("saved", _break_saved, "saved is no sound data set folder")])  # fmt: skip
def test_a_bad_file_is_named(tmp_path, name, make, message):
    make(tmp_path / name)
    with pytest.raises(DataError, match=message) as raised:
        prepared_from(tmp_path / name, tmp_path / "cache", **TEXT)
    assert "\n" not in str(raised.value)
    assert not list(Path(tmp_path).glob("cache/*"))


def test_when_every_record_is_bad_the_reasons_are_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n' * 7)
    reasons = (
        r"\(left out: 7 x no field 'text' \(first: a.jsonl line 1\)\) holds 0 different records"
    )
    with pytest.raises(DataError, match=reasons):
        prepared_from(path, tmp_path / "cache", source={"on_bad_record": "skip"}, **TEXT)


def test_when_no_answer_is_within_the_length_it_is_said(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in make_chats(20)))
    with pytest.raises(DataError, match=r"20 x no answer within seq_len .*raise seq_len=8"):
        prepared_from(path, tmp_path / "cache", seq_len=8, **CHAT)


def test_all_the_same_records_cannot_be_held_out(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one two"}\n' * 7)
    with pytest.raises(DataError, match="holds 1 different records and one to train on and one"):
        prepared_from(path, tmp_path / "cache", **TEXT)


def test_too_few_samples_for_a_step_say_both_numbers(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in make_texts(6)))
    with pytest.raises(DataError, match=r"has 5 samples .* global_batch=16 needs 16"):
        prepared_from(path, tmp_path / "cache", global_batch=16, **TEXT)


def test_a_tokenizer_of_more_tokens_than_the_model_has_rows_is_refused(tmp_path, tokenizer_json):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in make_texts(20)))
    for packing in ("none", "wrapped"):
        with pytest.raises(BrimfulError, match=r"writes token \d+ and the model has vocab_size=97"):
            prepared_from(
                path,
                tmp_path / "cache",
                source={"tokenizer": str(tokenizer_json)},
                model=make_model(),
                packing=packing,
            )


def test_a_tokenizer_that_is_none_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in make_texts(20)))
    (tmp_path / "tokenizer.json").write_text("{}")
    source = {"tokenizer": str(tmp_path / "tokenizer.json")}
    with pytest.raises(BrimfulError, match=r"tokenizer.json cannot be loaded"):
        prepared_from(path, tmp_path / "cache", source=source, **TEXT)
    (tmp_path / "weights").mkdir()
    with pytest.raises(BrimfulError, match="weights holds no tokenizer"):
        prepared_from(path, tmp_path / "cache", weights=str(tmp_path / "weights"), **TEXT)
