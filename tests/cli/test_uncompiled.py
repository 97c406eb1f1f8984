"""Files with float8, a compiler, and what this version runs neither beside: planned without."""

import argparse

import pytest

from brimful.cli.main import main, parser_of
from brimful.cli.sources import take_model, take_source
from brimful.cli.uncompiled import facts, most_times
from brimful.hardware.gpus import load_cluster
from brimful.values.plan import StepTime

TITAN = """
[model]
name = "llama3"
flavor = "8B"
{}
[optimizer]
lr = 3e-4
[training]
local_batch_size = 1
seq_len = 8192
steps = 1000
[activation_checkpoint]
mode = "full"
{}
"""
TENSOR_PARALLEL = "[parallelism]\ntensor_parallel_degree = 2"
COMPILED = "[compile]\nenable = true"
H100 = load_cluster("h100-80gb", memory_limit_bytes=None).device


TUNE = """
tokenizer: {{_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 2048}}
dataset: {{_component_: torchtune.datasets.alpaca_dataset, packed: true}}
model: {{_component_: torchtune.models.{}}}
batch_size: 2
optimizer: {{_component_: torch.optim.AdamW, lr: 2e-5, fused: true}}
compile: true
dtype: bf16
"""


class Made:
    predicted_step_time = StepTime(matrix_s=6.0, memory_s=2.0, launch_s=1.0, exposed_s=1.0)


@pytest.mark.parametrize(
    ("parts", "flags", "says"),
    [
        (('converters = ["float8"]', TENSOR_PARALLEL), [], ("bf16-mixed for float8", " tokens/s")),
        (("", COMPILED), ["--task", "dpo"], ("eager for compile",)),
    ],
    ids=("float8 beside tp", "a compiler beside dpo"),
)
def test_a_file_is_answered_without(parts, flags, says, tmp_path, capsys):
    path = tmp_path / "titan.toml"
    path.write_text(TITAN.format(*parts), "utf-8")
    assert main(["plan", "--from", str(path), "--gpus", "8xh100", "--no-proof", *flags]) == 0
    found = capsys.readouterr()
    out = " ".join(found.out.split())
    assert out.startswith("FITS")
    assert f"stands in {says[0]}" in out
    assert says[-1] in out
    assert "x as fast" in out
    assert "is not run" not in found.err


@pytest.mark.parametrize(
    ("builder", "found"),
    [
        ("llama3_2.llama3_2_1b", ("flex", "blocks+loss", ())),
        ("gemma2.gemma2_2b", (None, "none", ("compile",))),  # whose scores have a cap
    ],
)
def test_packed_documents_are_attended_and_compiled_where_a_class_takes_it(
    builder, found, tmp_path
):
    path = tmp_path / "tune.yaml"
    path.write_text(TUNE.format(builder), "utf-8")
    args = parser_of("plan").parse_args(["--from", str(path), "--gpus", "a100-80gb"])
    take_model(args)
    take_source(args)
    assert (args.attention, args.compile, args.planned_without) == found


@pytest.mark.parametrize(
    ("fp8", "compiled", "times"),
    [(True, True, 10 / (3 + 0.5)), (True, False, 10 / (3 + 3 + 0.5)), (False, True, 10 / 7)],
)
def test_a_bound_leaves_products_and_what_is_sent(fp8, compiled, times):
    found = most_times(Made, H100, fp8=fp8, compiled=compiled)
    assert found == pytest.approx(times, rel=0.01)  # fp8 is twice as fast there
    assert most_times(None, H100, fp8=fp8, compiled=compiled) is None


def test_where_nothing_is_left_out_nothing_is_said():
    assert facts(argparse.Namespace(), None, H100) == ()
