import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import FileFormatError, InputError
from brimful.train.data.corpus import load_corpus, read_texts
from brimful.train.data.tokenizer import (
    END_OF_TEXT,
    encode_documents,
    read_tokenizer,
    split_text,
    train_tokenizer,
    unigram_entropy,
    write_tokenizer,
)


@pytest.fixture(scope="module")
def tokenizer(text_folder):
    corpus = load_corpus(text_folder)
    return train_tokenizer(read_texts(corpus.train), vocab_size=400, num_chars=corpus.num_bytes)


def _encode(tokenizer, *texts):
    return [token for ids in encode_documents(tokenizer, texts) for token in ids]


@given(text=st.text())
def test_any_text_comes_back(tokenizer, text):
    ids = _encode(tokenizer, text)
    assert ids[-1] == tokenizer.token_to_id(END_OF_TEXT)
    assert tokenizer.decode(ids[:-1]) == text


def test_the_vocabulary_is_the_models(tokenizer):
    assert tokenizer.get_vocab_size() == 400


def test_text_is_shorter_in_tokens_than_in_bytes(tokenizer, text_folder):
    text = next(iter(read_texts(load_corpus(text_folder).heldout)))
    assert len(_encode(tokenizer, text)) < 0.7 * len(text.encode())


def test_every_document_ends_once_however_long(tokenizer):
    end = tokenizer.token_to_id(END_OF_TEXT)
    long_text = "one line of text\n" * 40_000
    ids = _encode(tokenizer, "a", "", long_text, "b")
    assert ids.count(end) == 4
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a" + long_text + "b"


def test_a_text_cannot_end_a_document(tokenizer):
    end = tokenizer.token_to_id(END_OF_TEXT)
    assert _encode(tokenizer, f"x{END_OF_TEXT}y").count(end) == 1


def test_a_text_cannot_end_a_document_after_reading_the_tokenizer_back(tokenizer, tmp_path):
    write_tokenizer(tokenizer, tmp_path / "tokenizer.json")
    again = read_tokenizer(tmp_path / "tokenizer.json")
    text = f"x{END_OF_TEXT}y\n"
    assert _encode(again, text) == _encode(tokenizer, text)


@given(text=st.text(alphabet="a\n", max_size=50))
def test_pieces_join_to_the_text(text):
    assert "".join(split_text(text * 20_000)) == text * 20_000


def test_training_is_deterministic_across_processes(text_folder):
    script = (
        "import sys, hashlib; from pathlib import Path\n"
        "from brimful.train.data.corpus import load_corpus, read_texts\n"
        "from brimful.train.data.tokenizer import train_tokenizer\n"
        "corpus = load_corpus(Path(sys.argv[1]))\n"
        "tokenizer = train_tokenizer(read_texts(corpus.train), vocab_size=600, num_chars=10**5)\n"
        "print(hashlib.sha256(tokenizer.to_str().encode()).hexdigest())\n"
    )
    command = [sys.executable, "-c", script, str(text_folder)]
    outputs = {
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": num_threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, num_threads in (("1", "1"), ("2", "2"), ("3", "4"))
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) == 65


def test_too_small_a_vocabulary_says_both_numbers():
    with pytest.raises(InputError, match=r"vocab_size=256 cannot hold the 256 bytes .* 257"):
        train_tokenizer([], vocab_size=256, num_chars=0)


def test_a_broken_tokenizer_file_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(FileFormatError, match=r"tokenizer\.json is not a tokenizer"):
        read_tokenizer(path)


def test_unigram_entropy_of_known_distributions():
    assert unigram_entropy(np.arange(8, dtype=np.uint16)) == pytest.approx(math.log(8))
    assert unigram_entropy(np.zeros(9, np.uint16)) == 0
    assert unigram_entropy(np.zeros(0, np.uint16)) == 0
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert unigram_entropy(np.array([5, 5, 5, 1], np.uint32)) == pytest.approx(expected)


@given(
    heldout=st.lists(st.integers(0, 20), min_size=1), train=st.lists(st.integers(0, 20), min_size=1)
)
def test_no_other_unigram_model_is_a_harder_bar(heldout, train):
    counts = np.bincount(train, minlength=21) + 1.0
    cross_entropy = float(-np.log(counts / counts.sum())[heldout].mean())
    assert unigram_entropy(np.array(heldout)) <= cross_entropy + 1e-12
