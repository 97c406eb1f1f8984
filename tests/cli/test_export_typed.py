"""What was typed of a model and of a run's length is what is exported of it."""

import io
from contextlib import redirect_stdout

import pytest

from brimful.cli.main import main

TYPED = "meta-llama/Llama-3.1-8B-Instruct"
ASK = (TYPED, "--gpus", "rtx-4090", "--method", "qlora", "--seq-len", 1024, "--no-proof",
       "--attention", "sdpa", "--pp", 1)  # fmt: skip


def exported(brimful, folder, target, *more):
    plan = folder / "plan.yaml"
    assert brimful("plan", *ASK, *more, "-o", plan).code == 0
    return brimful("export", plan, "--to", target)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A plan of nothing but what was typed; it is read only."""
    plan = tmp_path_factory.mktemp("typed") / "plan.yaml"
    with redirect_stdout(io.StringIO()):
        assert main(["plan", *map(str, ASK), "-o", str(plan)]) == 0
    return plan


@pytest.mark.parametrize(
    ("target", "key"),
    [("trl", "model_name_or_path"), ("llama-factory", "model_name_or_path"),
     ("axolotl", "base_model")],
)  # fmt: skip
def test_the_weights_that_were_typed_are_named_and_no_steps_that_nobody_asked_for(
    brimful, planned, target, key
):
    said = brimful("export", planned, "--to", target)
    assert f"{key}: {TYPED}\n" in said.out
    assert "max_steps" not in said.out
    assert "_epochs: 1\n" in said.out
    assert "once through the data" in said.err


def test_steps_that_were_asked_for_are_exported_and_weights_before_what_was_typed(
    brimful, tmp_path
):
    said = exported(brimful, tmp_path, "trl", "--steps", 30, "--weights", "some/where")
    assert "max_steps: 30\n" in said.out
    assert "epochs" not in said.out
    assert "model_name_or_path: some/where\n" in said.out
