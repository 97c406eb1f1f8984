"""Whole runs of preference tuning: references, resuming, what is judged."""

import json

import msgspec
import pytest
from tests.pairs import PREFERENCE
from tests.train.conftest import make_plan

from brimful.errors import UnsupportedError
from brimful.values.job import Adapter

pytestmark = pytest.mark.torch

LORA = Adapter(
    rank=4, alpha=8.0, targets=("all-linear",), trained_modules=(), dtype="same", base="same",
    upcast="none", input_requires_grad=False,
)  # fmt: skip
EXACT = ("step", "loss", "grad_norm", "num_targets", "heldout_loss", "accuracy")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs whose better answer repeats the question, which a small model soon sees."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    words = ["alpha", "beta", "gamma", "delta", "one", "two"]
    records = [
        {
            "prompt": f"{words[n % 6]} {words[n % 5]} ",
            "chosen": f"{words[n % 5]} yes {words[n % 3]}",
            "rejected": f"{words[(n + 1) % 4]} {'no ' * (1 + n % 2)}",
        }
        for n in range(120)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


@pytest.fixture(scope="module")
def run(pairs, tmp_path_factory):
    import torch

    from brimful.train.data.source import plain_source
    from brimful.train.loop import train
    from brimful.train.metering import NullMeter
    from brimful.train.observers import PlainObserver
    from brimful.train.settings import plain_settings

    cache = tmp_path_factory.mktemp("cache")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def start(plan, out, *, resume=False, streaming=False):
        import io

        settings = plain_settings(
            out=out,
            data=plain_source(str(pairs), streaming=streaming, shuffle_buffer=16),
            cache=cache,
            resume=resume,
            checkpoint_every_steps=3,
            eval_every_steps=3,
            num_eval_tokens=200,
        )
        return train(plan, settings, observer=PlainObserver(io.StringIO()), meter=NullMeter())

    yield start
    torch.set_num_threads(num_threads)


def plan_of(reference, *, num_steps=6, **job):
    plan = make_plan(
        task="dpo",
        packing="none",
        preference=PREFERENCE,
        num_steps=num_steps,
        warmup_steps=1,
        **job,
    )
    strategy = msgspec.structs.replace(plan.strategy, reference=reference)
    return msgspec.structs.replace(plan, strategy=strategy)


def curve(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in EXACT if key in row} for row in rows]


def test_every_reference_gives_the_same_curve_and_it_falls(run, tmp_path):
    job = {"method": "lora", "adapter": LORA, "learning_rate": 3e-2}
    kinds = ("adapters-off", "resident", "precomputed")
    for kind in kinds:
        run(plan_of(kind, **job), tmp_path / kind)
    first, *others = (curve(tmp_path / kind) for kind in kinds)
    for rows in others:
        for row, same in zip(rows, first, strict=True):
            assert row == pytest.approx(same, abs=1e-4)
    assert first[0]["loss"] == pytest.approx(0.6931472, abs=1e-5)
    assert first[0]["num_targets"] == 4
    judged = [row for row in first if "heldout_loss" in row]
    assert judged[-1]["heldout_loss"] < 0.69
    assert judged[-1]["accuracy"] > 0.6


def test_a_run_that_goes_on_asks_nobody_again(run, tmp_path):
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    run(plan_of("precomputed"), whole)
    run(plan_of("precomputed"), halved)
    for folder in sorted((halved / "checkpoints").iterdir())[1:]:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
    asked = halved / "reference.safetensors"
    before = asked.read_bytes()
    run(plan_of("precomputed"), halved, resume=True)
    assert asked.read_bytes() == before == (whole / "reference.safetensors").read_bytes()
    assert curve(halved) == curve(whole)


def test_what_was_asked_is_asked_again_where_it_is_lost(run, tmp_path):
    """Of the model as it was before training, whatever the checkpoint holds."""
    from safetensors.torch import load_file

    run(plan_of("precomputed"), tmp_path / "run")
    asked = tmp_path / "run" / "reference.safetensors"
    before = load_file(asked)["scores"]
    asked.unlink()
    run(plan_of("precomputed"), tmp_path / "run", resume=True)
    assert (load_file(asked)["scores"] == before).all()


def test_a_stream_cannot_be_asked_about_beforehand(run, tmp_path):
    with pytest.raises(UnsupportedError, match="--streaming keeps none"):
        run(plan_of("precomputed"), tmp_path / "run", streaming=True)
    assert not (tmp_path / "run").exists()
    run(plan_of("resident", num_steps=2), tmp_path / "run", streaming=True)
    assert len(curve(tmp_path / "run")) == 3
