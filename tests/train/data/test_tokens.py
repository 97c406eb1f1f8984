import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from brimful.errors import RunError
from brimful.train.data.corpus import load_corpus, read_texts
from brimful.train.data.tokenizer import END_OF_TEXT, read_tokenizer, unigram_entropy
from brimful.train.data.tokens import prepare_tokens


@pytest.fixture
def prepared(text_folder, tmp_path):
    corpus = load_corpus(text_folder)
    return corpus, prepare_tokens(corpus, vocab_size=300, cache=tmp_path)


def test_tokens_are_the_text(prepared):
    corpus, folder = prepared
    tokenizer = read_tokenizer(folder.tokenizer_path)
    end = tokenizer.token_to_id(END_OF_TEXT)
    for tokens, documents in ((folder.train(), corpus.train), (folder.heldout(), corpus.heldout)):
        assert np.count_nonzero(tokens == end) == len(documents)
        text = tokenizer.decode(tokens.tolist(), skip_special_tokens=True)
        assert text == "".join(read_texts(documents))


def test_the_manifest_counts_what_is_there(prepared):
    _, folder = prepared
    assert folder.tokens.num_train_tokens == len(folder.train())
    assert folder.tokens.num_heldout_tokens == len(folder.heldout())
    assert folder.tokens.unigram_entropy == unigram_entropy(folder.heldout())
    assert folder.train().dtype == np.uint16
    assert folder.train().max() < 300


def _stamps(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_a_second_run_takes_the_cache(prepared, tmp_path):
    corpus, folder = prepared
    before = _stamps(folder.path)
    again = prepare_tokens(corpus, vocab_size=300, cache=tmp_path)
    assert again == folder
    assert _stamps(folder.path) == before


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["train.bin", "heldout.bin", "tokens.json", "tokenizer.json"])
def test_a_damaged_cache_is_made_again(prepared, tmp_path, name):
    corpus, folder = prepared
    good = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    os.truncate(folder.path / name, 7)
    again = prepare_tokens(corpus, vocab_size=300, cache=tmp_path)
    assert {path.name: path.read_bytes() for path in again.path.iterdir()} == good


def test_another_vocabulary_is_another_folder(prepared, tmp_path):
    corpus, folder = prepared
    other = prepare_tokens(corpus, vocab_size=320, cache=tmp_path)
    assert other.path != folder.path
    assert other.tokens.tokens_hash != folder.tokens.tokens_hash
    assert sorted(tmp_path.iterdir()) == sorted([other.path, folder.path])


def test_a_large_vocabulary_takes_four_bytes(text_folder, tmp_path):
    corpus = load_corpus(text_folder)
    folder = prepare_tokens(corpus, vocab_size=70_000, cache=tmp_path)
    assert folder.train().dtype == np.uint32


def test_a_cache_that_cannot_be_written_is_named(text_folder, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file/cache \(Not a directory\); .* BRIMFUL_CACHE"):
        prepare_tokens(load_corpus(text_folder), vocab_size=300, cache=tmp_path / "file" / "cache")


def test_a_cache_without_room_is_named_and_left_clean(text_folder, tmp_path, monkeypatch):
    corpus = load_corpus(text_folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would cut it, too
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(RunError, match=r"\(File too large\); .* BRIMFUL_CACHE"):
            prepare_tokens(corpus, vocab_size=300, cache=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_preparing_data_needs_no_torch(text_folder, tmp_path):
    script = (
        "import sys; from pathlib import Path\n"
        "from brimful.train.data.batches import START, TokenBatches\n"
        "from brimful.train.data.corpus import load_corpus\n"
        "from brimful.train.data.tokens import prepare_tokens\n"
        "folder = prepare_tokens(load_corpus(Path(sys.argv[1])), vocab_size=300,"
        " cache=Path(sys.argv[2]))\n"
        "batches = TokenBatches(tokens=folder.train(), seq_len=8, global_batch=2, micro_batch=1,"
        " seed=0)\n"
        "print(batches.windows_at(START)[0].shape, 'torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script, str(text_folder), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "(2, 9) False\n"
