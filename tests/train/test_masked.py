"""Whole runs on hidden tokens: what a killed run goes on with, and what reads the model."""

import io
import shutil

import msgspec
import pytest
from tests.train.conftest import make_plan

from brimful.errors import InputError, UnsupportedError
from brimful.models.config import for_task, read_config

pytestmark = pytest.mark.torch

BERT = {
    "model_type": "bert", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 300, "max_position_embeddings": 64,
}  # fmt: skip
EXACT = ("step", "loss", "grad_norm", "num_targets", "heldout_loss")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    import torch

    from brimful.train.data.source import plain_source
    from brimful.train.loop import train
    from brimful.train.metering import NullMeter
    from brimful.train.observers import PlainObserver
    from brimful.train.settings import plain_settings

    root = tmp_path_factory.mktemp("masked")
    text = root / "text.txt"
    text.write_text("".join(f"line {n} of {n % 7} words\n" for n in range(900)), "utf-8")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def start(plan, out, *, resume=False, **source):
        settings = plain_settings(
            out=out, data=plain_source(str(text), **source), cache=root / "cache", resume=resume,
            checkpoint_every_steps=2, eval_every_steps=2, num_eval_tokens=200,
        )  # fmt: skip
        return train(plan, settings, observer=PlainObserver(io.StringIO()), meter=NullMeter())

    yield start
    torch.set_num_threads(num_threads)


def plan_of(**changes):
    model = for_task(read_config("tiny-bert", BERT), "masked-lm")
    return make_plan(model=model, task="masked-lm", num_steps=4, warmup_steps=1, **changes)


def curve(out):
    rows = (out / "metrics.jsonl").read_bytes().splitlines()
    return [{f: v for f, v in msgspec.json.decode(row).items() if f in EXACT} for row in rows]


def test_a_killed_run_goes_on_with_the_tokens_that_it_would_have_hidden(run, tmp_path):
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    run(plan_of(), whole)
    run(plan_of(), halved)
    for folder in sorted((halved / "checkpoints").iterdir())[1:]:
        shutil.rmtree(folder)
    run(plan_of(), halved, resume=True)
    assert curve(halved) == curve(whole)
    assert 0 < curve(whole)[0]["num_targets"] < 4 * 32 / 3


def test_transformers_reads_the_model_and_its_mask(run, tmp_path):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    run(plan_of(), tmp_path / "run")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert model.config.architectures == ["BertForMaskedLM"]
    assert tokenizer.mask_token_id == 1
    again = plan_of(weights=str(tmp_path / "run" / "model"))
    first = run(again, tmp_path / "again").heldout_loss
    assert first < run(plan_of(seed=8), tmp_path / "other").heldout_loss


def test_what_hides_nothing_is_refused(run, tmp_path):
    with pytest.raises(UnsupportedError, match="not streamed"):
        run(plan_of(), tmp_path / "run", streaming=True)
    run(make_plan(num_steps=2, warmup_steps=1), tmp_path / "decoder")
    with pytest.raises(InputError, match="no mask token"):
        run(plan_of(), tmp_path / "run", tokenizer=str(tmp_path / "decoder" / "model"))
