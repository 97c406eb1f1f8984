"""Misspelt flags: those that can be one of ours alone are taken, the others are named at once."""

import pytest

from brimful.cli.main import main, parser_of
from brimful.cli.misspelt import respelt

KNOWN = parser_of("plan")._option_string_actions
TAKEN = {
    "--seqlen": "--seq-len",
    "--SeqLen=8k": "--seq-len=8k",
    "-seq-len": "--seq-len",
    "\u2014zero": "--zero",
    "--globalbatch": "--global-batch",
    "--perdevicetrainbatchsize": "--micro-batch",
    "--mirco-batch": "--micro-batch",
    "--global-batsh": "--global-batch",
    "--step": "--steps",
}
LEFT = ("--seq-len", "--dp", "--beta", "--frob", "-5", "-v", "-oplan.yaml", "--seq_len", "8k", "-")


def test_a_flag_that_is_ours_but_for_a_slip_is_taken():
    words, notes = respelt([*TAKEN, "8k"], KNOWN)
    assert words == [*TAKEN.values(), "8k"]
    assert notes[0] == "--seq-len is taken for --seqlen"
    assert len(notes) == len(TAKEN)


def test_a_flag_that_could_be_several_or_none_is_left():
    assert respelt([*LEFT, "--", "--seqlen"], KNOWN) == ([*LEFT, "--", "--seqlen"], [])


def test_all_wrong_words_are_named_at_once_with_a_line_to_paste(capsys: pytest.CaptureFixture):
    typed = ("qwen3-8b", "--micro", "2", "--seqlen", "8k", "--frobnicate", "3", "--batch-size", "1")
    assert main(["plan", *typed]) == 2
    said = capsys.readouterr().err
    assert (
        "unrecognized arguments: --micro 2 --frobnicate 3; did you mean --micro-batch for" in said
    )
    assert "nothing here is like --frobnicate; " in said
    assert "brimful plan qwen3-8b --micro-batch 2 --seq-len 8k --micro-batch 1;" in said
    assert "--seq-len is taken for --seqlen" in said


def test_no_line_is_given_where_a_word_may_be_the_model(capsys: pytest.CaptureFixture):
    assert main(["plan", "--frobnicate", "8k", "qwen3-8b"]) == 2
    assert "to paste" not in capsys.readouterr().err
    assert main(["estimate", "qwen3-8b", "extra"]) == 2
    assert "to paste" not in capsys.readouterr().err


def test_a_misspelt_flag_stops_no_answer(capsys: pytest.CaptureFixture):
    main(["estimate", "tinyllama-1.1b", "--gpu", "a100-80", "--seqlen", "1k"])
    said = capsys.readouterr()
    assert "--seq-len is taken for --seqlen" in said.err
    assert "FITS" in said.out
    assert "A100 SXM 80GB" in said.out
