import pytest
from tests.train.data.conftest import make_chats, make_texts, prepared_from, write_jsonl

from brimful.errors import InputError
from brimful.train.data.preview import preview

pytestmark = pytest.mark.torch

TALK = {
    "messages": [
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "alpha \x1b[31m beta"},
    ]
}


def test_a_chat_shows_what_is_learnt_line_by_line(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [TALK] * 4)
    source = {"heldout": str(write_jsonl(tmp_path / "h.jsonl", make_chats(1)))}
    prepared = prepared_from(path, tmp_path / "cache", task="chat", packing="none", source=source)
    shown = [preview(prepared, number=number, width=100) for number in (1, 2, 3, 4)]
    lines = shown[0].splitlines()
    assert lines[1:3] == ["template: the built-in ChatML template", ""]
    assert lines[3:] == [
        "      | <|im_start|>user\\n",
        "      | one\\n",
        "      | two<|im_end|>\\n",
        "      | <|im_start|>assistant\\n",
        " loss | alpha \\x1b[31m beta<|endoftext|>",
        "      | \\n",
    ]
    num_tokens, num_learnt = (int(lines[0].split()[place]) for place in (0, 2))
    (batch, _), _ = prepared.batches.step_at(_start())
    assert num_tokens == int((batch.segments[0] > 0).sum())
    assert num_learnt == int((batch.labels[0] >= 0).sum())


def _start():
    from brimful.train.data.batches import START

    return START


@pytest.mark.parametrize("width", [40, 100])
def test_no_line_is_wider_than_the_terminal_and_no_text_is_lost(tmp_path, width):
    path = write_jsonl(tmp_path / "a.jsonl", make_texts(40))
    prepared = prepared_from(path, tmp_path / "cache", packing="documents")
    lines = preview(prepared, number=1, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert "document 2" in lines
    text = "".join(line[8:] for line in lines if line[6:7] == "|")
    (batch, *_), _ = prepared.batches.step_at(_start())
    ids = batch.inputs[0][batch.segments[0] > 0].tolist()
    assert text == prepared.coder.tokenizer.decode(ids)
    # The first token of each document has nothing before it to be learnt from.
    assert lines[lines.index("document 1") + 1].startswith("      | ")


def test_classes_targets_and_wrapped_text_are_shown_too(tmp_path):
    records = [
        {"text": f"{n} one", "label": 1, "source": f"{n} one", "target": "two alpha"}
        for n in range(30)
    ]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    labelled = {"task": "sequence-classification", "packing": "none"}
    prepared = prepared_from(path, tmp_path / "cache", **labelled)
    assert preview(prepared, number=1, width=80).splitlines()[-1] == " loss | class 1"
    prepared = prepared_from(path, tmp_path / "cache", task="seq2seq", packing="none")
    shown = preview(prepared, number=1, width=80).splitlines()
    assert shown[-2:] == ["target", " loss | two alpha<|endoftext|>"]
    path = write_jsonl(tmp_path / "b.jsonl", make_texts(300))
    prepared = prepared_from(path, tmp_path / "cache")
    assert preview(prepared, number=1, width=80).startswith("96 tokens, 96 with loss, 0 of padding")


def test_a_row_that_is_not_there_says_how_many_are(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", make_texts(40))
    prepared = prepared_from(path, tmp_path / "cache", packing="none")
    with pytest.raises(InputError, match="has 4 rows and 5 is none"):
        preview(prepared, number=5, width=80)
