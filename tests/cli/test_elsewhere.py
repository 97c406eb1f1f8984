"""Flags and tasks of other programs: what means the same is taken, the rest names the nearest."""

import argparse
from typing import get_args

import pytest

from brimful.cli.elsewhere import NOT_RUN, SAME, TASKS, refuse_elsewhere
from brimful.cli.main import parser_of
from brimful.errors import MORE, UnsupportedError
from brimful.values.job import Method, Optimizer, Precision, Task
from each_case import each

VERDICTS = ("FITS", "TIGHT", "NO", "UNKNOWN")
H100 = ("--gpus", "h100-80gb")


def test_flags_of_other_programs_are_taken_for_ours(brimful):
    ours = ("estimate", "smollm2-135m", *H100, "--micro-batch", 2, "--seq-len", 512)
    theirs = ("estimate", "smollm2-135m", "--gpu", "h100-80gb", "--batch-size", 2)
    said = brimful(*theirs, "--max-seq-length=512")
    assert (said.code, said.out) == (0, brimful(*ours).out)
    assert "--micro-batch is taken for --batch-size" in said.err
    assert "--seq-len is taken for --max-seq-length" in said.err


def test_what_a_program_under_pretend_is_given_stays():
    given = parser_of("pretend").parse_args(["--gpu", "t4", "--", "loop.py", "--batch-size", "8"])
    assert "--batch-size" in str(vars(given))


ONE_OF_EACH = sorted({elsewhere: task for task, elsewhere in TASKS.items()}.values())
"""Of the names that are said to be the same, one."""


@pytest.mark.few(only=ONE_OF_EACH)
@pytest.mark.parametrize("task", TASKS)
def test_a_task_that_is_not_run_names_the_nearest(brimful, task):
    said = brimful("estimate", "smollm2-135m", *H100, "--task", task, "--seq-len", 128)
    assert said.code == 2
    assert f"--task {task} (" in said.err
    assert said.out.startswith(f"instead   the same with --task {TASKS[task].name}")
    assert len(said.out.splitlines()) <= 13


@each(
    "asked, is_known",
    [
        (("--task", "orpo", "--micro-batch", 64), False),  # DPO's reference comes on top
        (("--task", "orpo"), True),
        (("--task", "distillation"), False),  # a teacher comes on top
        (("--task", "distillation", "--micro-batch", 256), True),
        (("--optimizer", "soap"), False),
        (("--optimizer", "lion"), True),
        (("--optimizer", "lion", "--micro-batch", 256), True),
        (("--task", "grpo"), True),  # what comes on top has room left
    ],
)
def test_a_verdict_on_what_takes_more_or_less_may_be_unknown(brimful, asked, is_known):
    said = brimful("estimate", "smollm2-135m", *H100, "--seq-len", 2048, *asked)
    assert said.code == 2
    verdict = next(line for line in said.out.splitlines() if line.startswith(VERDICTS)).split()[0]
    assert (verdict != "UNKNOWN") == is_known
    assert ("not known it may" in " ".join(said.out.split())) != is_known


@each(
    "task, batch, near",
    [
        ("kto", (4, 16), "dpo --micro-batch 2 --global-batch 8"),  # TRL's kto_trainer.py
        ("kto", (3, 15), "dpo --micro-batch 2 --global-batch 10"),
        ("reward", (4, 16), "sequence-classification --micro-batch 8 --global-batch 32"),
    ],
)
def test_rows_are_counted_as_what_stands_in_counts_them(brimful, task, batch, near):
    sizes = ("--micro-batch", batch[0], "--global-batch", batch[1])
    said = brimful("estimate", "smollm2-135m", *H100, "--task", task, *sizes, "--seq-len", 256)
    assert f"instead the same with --task {near}:" in " ".join(said.out.split())


@each(
    "typed, near, takes",
    [
        ({"micro_batch": 1, "global_batch": 8, "gpus": "8xt4"}, (1, 8), MORE),  # each has a row
        ({"micro_batch": 3, "global_batch": 9, "gpus": "t4"}, (2, 6), MORE),
        ({"micro_batch": [1, 4], "global_batch": 8, "gpus": "t4"}, ([1, 2], 8), MORE),
        ({"micro_batch": 2, "global_batch": 16, "gpus": "2x2xt4"}, (1, 8), ""),
        ({"global_batch": 8, "gpus": "8xt4"}, (None, 8), MORE),
        ({"global_batch": 16, "gpus": "8xt4"}, (None, 8), ""),
        ({"global_batch": 5, "rows": 9}, (None, 3), MORE),
    ],
)
def test_a_batch_of_what_stands_in_is_of_as_many_micro_batches(typed, near, takes):
    with pytest.raises(UnsupportedError) as refused:
        refuse_elsewhere(argparse.Namespace(task="kto", **typed))
    found = refused.value.nearest
    assert (found.get("micro_batch"), found["global_batch"]) == near
    assert refused.value.takes == takes
    assert found.get("rows") == (5 if "rows" in typed else None)


@pytest.mark.parametrize(
    ("limit", "verdict", "words"),
    [
        ("14GiB", "FITS", "the same with --optimizer adamw:"),
        (
            "11GiB",
            "UNKNOWN",
            "takes less, and leaves 472.43 MiB; --optimizer adamw takes more: 11.20 GiB of 10.35",
        ),
        ("9GiB", "NO", "the same with --optimizer sgd:"),
    ],
)
def test_what_lies_between_two_optimizers_is_judged_by_both(brimful, limit, verdict, words):
    said = brimful(
        "estimate", "smollm2-360m", *H100, "--seq-len", 2048, "--micro-batch", 4, "--ac", "full",
        "--precision", "fp16-mixed", "--memory-limit", limit, "--optimizer", "lion",
    )  # fmt: skip
    assert said.code == 2
    assert "what it takes lies between sgd, which keeps as many bytes, and adamw" in said.err
    assert said.out.splitlines()[1].startswith(f"{verdict} ")
    assert words in " ".join(said.out.split())


def test_supervised_fine_tuning_is_a_causal_lm():
    assert parser_of("plan").parse_args(["smollm2-135m", "--task", "sft"]).task == "causal-lm"


def test_a_score_is_answered_as_two_classes(brimful):
    asked = ("estimate", "bert-base-uncased", *H100, "--seq-len", 128)
    said = brimful(*asked, "--task", "sequence-classification", "--num-labels", 1)
    assert said.code == 0
    assert "--num-labels 2 is taken for 1: a score" in said.err
    classes = brimful(*asked, "--task", "sequence-classification", "--num-labels", 2)
    assert said.out == classes.out


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "ours"),
    [("paged_adamw", "paged-adamw-32bit"), ("adamw_bnb_8bit", "adamw-8bit")],
)
def test_optimizers_of_other_programs_are_taken_for_ours(brimful, name, ours):
    asked = ("estimate", "smollm2-135m", *H100, "--seq-len", 512, "--optimizer")
    said = brimful(*asked, name)
    assert (said.code, said.out) == (0, brimful(*asked, ours).out)
    assert f"--optimizer {ours} is taken for '{name}'" in said.err


def test_epochs_are_told_to_need_the_size_of_the_data(brimful):
    said = brimful("estimate", "smollm2-135m", *H100, "--epochs", 3)
    assert said.code == 0
    assert "--epochs 3 is left out: epochs need the size of your data: --tokens" in said.err


def test_who_shops_for_serving_is_told_what_answers(brimful):
    for more in ((), ("--weights-format", "int4")):
        said = brimful("shop", "smollm2-135m", "--task", "inference", *more)
        assert said.code == 2
        assert "brimful estimate MODEL --task inference" in said.err


def test_the_length_of_a_text_is_counted_as_models_are_named(brimful):
    short, exact = (
        brimful("estimate", "smollm2-135m", *H100, "--seq-len", n, "--json").out
        for n in ("4k", "4096")
    )
    assert short == exact


@pytest.mark.parametrize("gpu", ["m4-max", "rx-6800", "arc-b580"])
def test_hardware_that_is_not_modelled_is_told_apart_from_a_slip(brimful, gpu):
    said = brimful("estimate", "smollm2-135m", "--gpus", gpu)
    assert said.code == 2
    assert "which this version does not model" in said.err


def test_a_degree_that_divides_nothing_is_answered_with_one_that_does(brimful):
    said = brimful("estimate", "smollm2-360m", "--gpus", "8xh100-80gb", "--tp", 3)
    assert said.code == 2
    assert "tp=3 x pp=1 does not divide 8 devices" in said.err
    assert "1, 2, 4, 8" in said.err


CHOICES = {"task": Task, "method": Method, "optimizer": Optimizer, "precision": Precision}


@pytest.mark.parametrize("flag", NOT_RUN)
def test_words_of_the_field_lead_to_choices_and_choices_to_themselves(flag):
    allowed = get_args(CHOICES[flag])
    assert not {*NOT_RUN[flag], *SAME[flag]} & {*allowed}
    assert not {*NOT_RUN[flag]} & {*SAME[flag]}
    assert {*SAME[flag].values()} <= {*allowed, *NOT_RUN[flag]}
    for told in NOT_RUN[flag].values():
        assert told.name in get_args(CHOICES[told.flag or flag])
    for name in allowed:
        assert getattr(parser_of("plan").parse_args(["gpt2", f"--{flag}", name]), flag) == name


@pytest.mark.parametrize(
    ("flag", "word", "near"),
    [
        ("method", "freeze", "--method lora"),
        ("method", "Prefix_Tuning", "--method lora"),
        ("method", "apollo", "--optimizer adamw-foreach without --method"),
        ("optimizer", "apollo_adamw", "--optimizer adamw-foreach"),
        ("optimizer", "lion", "--optimizer adamw"),
        ("task", "embedding", "--task sequence-classification"),
        ("precision", "int4", "--method qlora without --precision"),
    ],
)
def test_a_choice_that_is_not_run_is_answered_by_the_nearest(brimful, flag, word, near):
    said = brimful("estimate", "smollm2-135m", *H100, f"--{flag}", word, "--seq-len", 128)
    assert said.code == 2
    assert said.err.splitlines()[0].startswith(f"brimful: --{flag} {word.lower()[:3]}")
    # What is embedded takes more than what is classified: of that a FITS says nothing.
    verdict = "UNKNOWN" if word == "embedding" else "FITS"
    assert said.out.startswith(f"instead   the same with {near}:\n{verdict} ")


@pytest.mark.parametrize(
    ("flag", "word", "ours"),
    [("method", "Full-Finetuning", "full"), ("precision", "bf16-true", "bf16")],
)
def test_other_names_are_taken_for_ours(flag, word, ours):
    assert getattr(parser_of("plan").parse_args(["gpt2", f"--{flag}", word]), flag) == ours
