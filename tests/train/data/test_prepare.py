import json

import msgspec
import pytest
from tests.samples import make_model
from tests.train.data.conftest import (
    VOCAB_SIZE,
    make_chats,
    make_texts,
    prepared_from,
    write_jsonl,
)

from brimful.train.data.batches import START
from brimful.train.data.corpus import load_corpus
from brimful.train.data.encoding import ALSO_HELD_OUT
from brimful.train.data.tokens import prepare_tokens

pytestmark = pytest.mark.torch


def decoded(prepared, batches):
    """Decode every document of the batches."""
    found = []
    for batch in batches:
        for inputs, segments in zip(batch.inputs.tolist(), batch.segments.tolist(), strict=True):
            for document in range(1, max(segments) + 1):
                pairs = zip(inputs, segments, strict=True)
                ids = [token for token, number in pairs if number == document]
                found.append(prepared.coder.tokenizer.decode(ids, skip_special_tokens=True))
    return found


def one_pass(prepared):
    position, found = START, []
    while position.epoch == 0:
        batches, position = prepared.batches.step_at(position)
        found += decoded(prepared, batches)
    return found


def make_splits(tmp_path, *, heldout=None, **changes):
    path = write_jsonl(tmp_path / "a.jsonl", make_texts(200))
    source = {"heldout": heldout, "heldout_share": 0.2}
    return prepared_from(
        path, tmp_path / "cache", packing="none", source=source, num_eval_tokens=10**6, **changes
    )


def test_no_record_is_both_trained_on_and_held_out_and_none_is_lost(tmp_path):
    prepared = make_splits(tmp_path, global_batch=1, micro_batch=1)
    train, heldout = one_pass(prepared), decoded(prepared, prepared.heldout)
    assert sorted(train + heldout) == sorted(record["text"] for record in make_texts(200))
    assert 20 < len(heldout) < 60


def test_copies_of_a_record_stay_on_one_side(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", make_texts(40) * 3)
    prepared = prepared_from(
        path,
        tmp_path / "cache",
        packing="none",
        global_batch=1,
        source={"heldout_share": 0.3},
        num_eval_tokens=10**6,
    )
    train, heldout = one_pass(prepared), decoded(prepared, prepared.heldout)
    assert len(train) + len(heldout) == 120
    assert not set(train) & set(heldout)


@pytest.mark.parametrize("number", [2, 3, 5])
def test_few_records_leave_both_parts_with_some(tmp_path, number):
    path = write_jsonl(tmp_path / "a.jsonl", make_texts(number))
    prepared = prepared_from(path, tmp_path / "cache", packing="none", global_batch=1)
    assert prepared.summary.num_train_samples == number - 1


@pytest.mark.parametrize("streaming", [False, True])
def test_a_held_out_file_is_judged_by_and_its_records_are_not_trained_on(tmp_path, streaming):
    path = write_jsonl(tmp_path / "a.jsonl", make_texts(30))
    heldout = write_jsonl(tmp_path / "h.jsonl", [*make_texts(3), {"text": "only here"}])
    prepared = prepared_from(
        path,
        tmp_path / "cache",
        packing="none",
        global_batch=1,
        source={"heldout": str(heldout), "streaming": streaming, "shuffle_buffer": 50},
        num_eval_tokens=10**6,
    )
    judged = decoded(prepared, prepared.heldout)
    assert sorted(judged) == sorted([*(r["text"] for r in make_texts(3)), "only here"])
    assert sorted(one_pass(prepared)) == sorted(r["text"] for r in make_texts(30)[3:])
    assert [(s.reason, s.num_records) for s in prepared.summary.skipped] == [(ALSO_HELD_OUT, 3)]


def _stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("packing", ["none", "wrapped"])
def test_a_second_run_takes_the_cache_and_changed_data_is_noticed(tmp_path, packing):
    path = write_jsonl(tmp_path / "a.jsonl", make_texts(400))
    job = {"packing": packing, "seq_len": 32, "source": {"heldout_share": 0.2}}
    first = prepared_from(path, tmp_path / "cache", **job)
    before = _stamps(tmp_path / "cache")
    again = prepared_from(path, tmp_path / "cache", **job)
    assert _stamps(tmp_path / "cache") == before
    assert (again.data_hash, again.summary) == (first.data_hash, first.summary)
    write_jsonl(path, make_texts(401))
    assert prepared_from(path, tmp_path / "cache", **job).data_hash != first.data_hash


@pytest.mark.parametrize("name", ["train/inputs.bin", "heldout/stops.bin", "samples.json"])
def test_a_damaged_cache_is_made_again(tmp_path, name):
    first = make_splits(tmp_path)
    seen = one_pass(first)
    # Another file, not the same one cut: that is still mapped.
    (first.tokenizer_folder / name).unlink()
    (first.tokenizer_folder / name).write_bytes(b"x")
    again = make_splits(tmp_path)
    assert again.data_hash == first.data_hash
    assert one_pass(again) == seen


def test_plain_text_is_encoded_as_ever(tmp_path, text_folder):
    prepared = prepared_from(text_folder, tmp_path / "one", seq_len=32)
    folder = prepare_tokens(load_corpus(text_folder), vocab_size=VOCAB_SIZE, cache=tmp_path / "two")
    assert prepared.data_hash == folder.tokens.tokens_hash
    assert prepared.tokenizer_folder.name == folder.path.name
    assert prepared.batches.tokens.tolist() == folder.train().tolist()


def test_plain_text_can_be_laid_out_by_documents(tmp_path, text_folder):
    prepared = prepared_from(text_folder, tmp_path, packing="documents", num_eval_tokens=10**6)
    wrapped = prepared_from(text_folder, tmp_path)
    # The same text but for the files' end marks that are nobody's input.
    assert prepared.summary.num_train_tokens == pytest.approx(
        wrapped.summary.num_train_tokens, rel=0.01
    )


def test_records_of_text_are_wrapped_like_files(tmp_path):
    texts = make_texts(300)
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    prepared = prepared_from(path, tmp_path / "cache", source={"heldout_share": 0.2})
    tokens = prepared.batches.tokens
    total = prepared.summary.num_train_tokens + prepared.summary.num_heldout_tokens
    coder = prepared.coder
    assert total == sum(len(coder.document_ids(record["text"])) for record in texts)
    assert (tokens == coder.end_id).sum() > 200
    batches, _ = prepared.batches.step_at(START)
    assert batches[0].segments is None


def test_the_tokenizer_of_the_weights_is_used_and_handed_on(tmp_path, coder_with):
    from transformers import AutoTokenizer

    weights = tmp_path / "weights"
    mark = "{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}"
    coder = coder_with(None, ["<|end|>"])
    coder.tokenizer.chat_template = mark
    coder.tokenizer.save_pretrained(weights)
    path = write_jsonl(tmp_path / "a.jsonl", make_chats(40))
    prepared = prepared_from(
        path, tmp_path / "cache", task="chat", packing="none", weights=str(weights)
    )
    assert prepared.summary.template == "the tokenizer's template"
    saved = AutoTokenizer.from_pretrained(prepared.tokenizer_folder)
    assert saved.chat_template == mark
    assert saved.get_vocab() == coder.tokenizer.get_vocab()
    batches, _ = prepared.batches.step_at(START)
    end = coder.tokenizer.convert_tokens_to_ids("<|end|>")
    assert (batches[0].inputs == end).sum() == 4


def test_a_given_template_wins(tmp_path):
    template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}"
        "{{ m['content'] }}{% endgeneration %}{% else %}Q{% endif %}{% endfor %}"
    )
    path = write_jsonl(tmp_path / "a.jsonl", make_chats(40))
    source = {"chat_template": template}
    prepared = prepared_from(path, tmp_path / "cache", task="chat", packing="none", source=source)
    assert prepared.summary.template == "the given template"
    batches, _ = prepared.batches.step_at(START)
    # All but the Q carry loss.
    assert int((batches[0].labels >= 0).sum()) == int((batches[0].segments > 0).sum()) - 2


def test_what_is_cut_and_what_is_left_out_is_counted(tmp_path):
    long = {"messages": [{"role": "user", "content": "one"},
                         {"role": "assistant", "content": "alpha " * 300}]}  # fmt: skip
    lost = {"messages": [{"role": "user", "content": "beta " * 300},
                         {"role": "assistant", "content": "two"}]}  # fmt: skip
    path = write_jsonl(tmp_path / "a.jsonl", [*make_chats(40), long, lost])
    prepared = prepared_from(path, tmp_path / "cache", task="chat", packing="none")
    assert prepared.summary.num_truncated == 2
    (skipped,) = prepared.summary.skipped
    assert skipped.reason == "no answer within seq_len"
    assert skipped.first == "a.jsonl line 42"


def test_classes_of_another_order_are_not_taken_from_the_cache(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{**text, "label": "good"} for text in make_texts(60)])
    seen = []
    for names in (("bad", "good"), ("good", "bad")):
        model = make_model(vocab_size=VOCAB_SIZE)
        config = {**model.hf_config, "id2label": dict(enumerate(names))}
        prepared = prepared_from(
            path,
            tmp_path / "cache",
            task="sequence-classification",
            packing="none",
            model=msgspec.structs.replace(model, hf_config=config),
            global_batch=1,
        )
        (batch,), _ = prepared.batches.step_at(START)
        seen.append(batch.labels.item())
    assert seen == [1, 0]


def test_classes_may_be_numbers_or_names(tmp_path):
    config = {"id2label": {"0": "bad", "1": "fine", "2": "good"}}
    model = make_model(vocab_size=VOCAB_SIZE)
    model = type(model)(**{**{f: getattr(model, f) for f in model.__struct_fields__},
                           "hf_config": {**model.hf_config, **config}})  # fmt: skip
    labels = [2, "good", "2", 0, "bad", "1"] * 10
    records = [
        {"text": f"{record['text']}", "label": label}
        for record, label in zip(make_texts(60), labels, strict=True)
    ]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    prepared = prepared_from(
        path,
        tmp_path / "cache",
        task="sequence-classification",
        packing="none",
        model=model,
        global_batch=1,
    )
    expected = {r["text"]: {"good": 2, "bad": 0, "2": 2, "1": 1}.get(r["label"], r["label"])
                for r in records}  # fmt: skip
    position, num_seen = START, 0
    while position.epoch == 0:
        (batch,), position = prepared.batches.step_at(position)
        assert batch.labels.shape == (1,)
        (text,) = decoded(prepared, [batch])
        assert batch.labels.item() == expected[text]
        num_seen += 1
    assert num_seen == prepared.summary.num_train_samples
    # What frames the text is the end mark of our own tokenizer.
    assert batch.inputs[0, 0] == prepared.coder.end_id


def test_pairs_have_a_target_that_ends(tmp_path):
    records = [{"source": f"{n} one two", "target": f"two {n} one alpha"} for n in range(40)]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    prepared = prepared_from(path, tmp_path / "cache", task="seq2seq", packing="none")
    (batch, *_), _ = prepared.batches.step_at(START)
    assert batch.labels.shape[0] == 2
    assert batch.labels.shape[1] % 8 == 0
    tokenizer, end = prepared.coder.tokenizer, prepared.coder.end_id
    for inputs, labels in zip(batch.inputs, batch.labels, strict=True):
        target = labels[labels >= 0].tolist()
        assert target[-1] == end
        number = tokenizer.decode(inputs, skip_special_tokens=True).split()[0]
        assert tokenizer.decode(target, skip_special_tokens=True) == f"two {number} one alpha"


def test_the_summary_is_a_value_that_can_be_stored(tmp_path):
    import msgspec

    summary = make_splits(tmp_path).summary
    assert json.loads(msgspec.json.encode(summary))["num_train_samples"] > 100
