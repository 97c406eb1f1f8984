import json
import random

import pytest
from tests.samples import make_job, make_model

from brimful.train.data.coder import Coder, own_coder
from brimful.train.data.prepare import prepare
from brimful.train.data.source import plain_source
from brimful.train.data.tokenizer import train_tokenizer, write_tokenizer

WORDS = ["alpha", "beta", "gamma", "delta", "one", "two", "three", "[four]", "héllo"]
VOCAB_SIZE = 600


def sentence(rng, most):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def make_chats(number=120, seed=0):
    rng = random.Random(seed)  # noqa: S311 - data of a test
    return [
        {
            "messages": [
                {"role": "user", "content": sentence(rng, 12)},
                {"role": "assistant", "content": sentence(rng, 15)},
            ]
        }
        for _ in range(number)
    ]


def make_texts(number=120, seed=0):
    rng = random.Random(seed)  # noqa: S311
    return [{"text": f"{number} {sentence(rng, 40)}"} for number in range(number)]


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def prepared_from(path, cache, *, micro_batch=2, num_eval_tokens=500, source=None, **job):
    fields = {"model": make_model(vocab_size=VOCAB_SIZE), "seq_len": 96, "global_batch": 4, **job}
    return prepare(
        plain_source(str(path), **(source or {})),
        make_job(**fields),
        micro_batch=micro_batch,
        cache=cache,
        num_eval_tokens=num_eval_tokens,
    )


@pytest.fixture(scope="session")
def tokenizer_json(tmp_path_factory):
    """A byte-level tokenizer of words, small enough to know by heart."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    texts = [" ".join(WORDS)] * 50
    write_tokenizer(train_tokenizer(texts, vocab_size=400, num_chars=1000), path)
    return path


@pytest.fixture
def coder_with(tokenizer_json):
    def make(template=None, special=()) -> Coder:
        coder = own_coder(tokenizer_json, template)
        if special:
            coder.tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
        return coder

    return make
