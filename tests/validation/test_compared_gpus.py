"""What is shipped of how far off speeds were is what the blind askings say."""

import json

from compared_gpus import SHIPPED, compared

from brimful.cli.main import main
from brimful.hardware.compared import compared_words
from brimful.published.rows import published_runs


def test_what_is_shipped_is_what_the_rows_say():
    assert json.loads(SHIPPED.read_text("utf-8")) == compared()


def test_no_card_of_a_published_speed_is_said_to_be_compared_with_nothing():
    published = {run.gpu for run in published_runs() if run.tokens_per_s}
    assert published <= {*compared()}


def test_a_speed_is_said_to_be_unsure_where_runs_do_not_bear_out_its_range():
    assert compared_words("rx-7900-xtx", 0.4).startswith("speed by the data sheet (no run")
    assert compared_words("h100-80gb", 0.4) == ""
    assert "of this GPU that were compared" in compared_words("h100-80gb", 0.0)


def test_it_stands_among_what_is_assumed(capsys):
    ask = "llama-3.2-1b --gpus {} --method lora --seq-len 512 --precision bf16"
    told = {}
    for gpu in ("rx-7900-xtx", "a100-80gb"):
        main(["estimate", *ask.format(gpu).split()])
        told[gpu] = " ".join(capsys.readouterr().out.split())
    assert "(no run of this GPU was compared)" in told["rx-7900-xtx"]
    assert "compared" not in told["a100-80gb"]
