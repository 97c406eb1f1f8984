"""Flags and tasks of other programs: what means the same is taken, the rest names the nearest."""

import pytest

from brimful.cli.elsewhere import TASKS, spelled_as_ours
from brimful.cli.main import parser_of

H100 = ("--gpus", "h100-80gb")


def test_flags_of_other_programs_are_taken_for_ours(brimful):
    ours = ("estimate", "smollm2-135m", *H100, "--micro-batch", 2, "--seq-len", 512)
    theirs = ("estimate", "smollm2-135m", "--gpu", "h100-80gb", "--batch-size", 2)
    said = brimful(*theirs, "--max-seq-length=512")
    assert (said.code, said.out) == (0, brimful(*ours).out)
    assert "--micro-batch is taken for --batch-size" in said.err
    assert "--seq-len is taken for --max-seq-length" in said.err


def test_a_flag_is_only_taken_where_a_verb_has_ours():
    typed = ["x.py", "--batch-size", "8"]
    assert [ours for ours, _ in spelled_as_ours(typed, {"--gpu"})] == typed


def test_what_a_program_under_pretend_is_given_stays():
    given = parser_of("pretend").parse_args(["--gpu", "t4", "--", "loop.py", "--batch-size", "8"])
    assert "--batch-size" in str(vars(given))


@pytest.mark.parametrize("task", TASKS)
def test_a_task_that_is_not_run_names_the_nearest(brimful, task):
    model = "bert-base-uncased" if task == "masked-lm" else "smollm2-135m"
    said = brimful("estimate", model, *H100, "--task", task, "--seq-len", 128)
    assert said.code == 2
    assert f"--task {task} (" in said.err
    assert said.out.startswith(f"instead   the same with --task {TASKS[task][2]}")
    assert len(said.out.splitlines()) <= 13


def test_supervised_fine_tuning_is_a_causal_lm():
    assert parser_of("plan").parse_args(["smollm2-135m", "--task", "sft"]).task == "causal-lm"


def test_a_score_is_answered_as_two_classes(brimful):
    asked = ("estimate", "bert-base-uncased", *H100, "--seq-len", 128)
    said = brimful(*asked, "--task", "sequence-classification", "--num-labels", 1)
    assert said.code == 2
    assert "num_labels=1 is a score" in said.err
    assert said.out.startswith("instead   the same with --num-labels 2:")
