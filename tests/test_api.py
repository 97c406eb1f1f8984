"""``import brimful``: verbs as functions, with the command line's names, defaults and errors."""

import subprocess
import sys
from typing import get_type_hints

import pytest

import brimful
from brimful.api import Answer
from brimful.cli.main import main
from brimful.errors import BrimfulError, InputError, UnknownNameError
from brimful.text.terminal import forget_notes

TINY = {"gpus": "h100", "seq_len": 256, "global_batch": 8}


def test_importing_it_loads_neither_torch_nor_numpy():
    code = "import brimful, sys; print(sorted({'torch', 'numpy', 'msgspec'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_an_estimate_prints_and_draws_what_the_terminal_shows(capsys):
    answer = brimful.estimate("tinyllama-1.1b", **TINY)
    assert isinstance(answer, Answer)
    assert answer.fits
    assert answer.values["job"]["seq_len"] == 256
    capsys.readouterr()
    flags = ["--gpus", "h100", "--seq-len", "256", "--global-batch", "8"]
    assert main(["estimate", "tinyllama-1.1b", *flags]) == answer.exit_code
    assert str(answer) == capsys.readouterr().out.rstrip("\n") == repr(answer)
    assert answer._repr_html_().startswith("<pre>")


def test_a_plan_is_searched_and_what_does_not_fit_is_an_answer():
    assert brimful.plan("tinyllama-1.1b", **TINY, no_proof=True).values["best"]["fits"]
    answer = brimful.estimate("gpt2-large", gpus="t4", seq_len=256, micro_batch=8)
    assert (answer.fits, answer.exit_code) == (False, 1)


def test_markup_that_was_given_is_escaped():
    answer = Answer(0, {}, lambda: "<script>&")
    assert answer._repr_html_() == "<pre>&lt;script&gt;&amp;</pre>"


def test_modules_of_the_verbs_names_stay_modules():
    import brimful.simulate as module
    from brimful.simulate.run import simulate

    assert brimful.simulate is module
    assert module.run.simulate is simulate
    assert callable(brimful.simulate)
    assert callable(brimful.train)
    assert {"estimate", "plan", "shop", "pretend", "Plan"} <= set(dir(brimful))


def test_values_are_named_beside_the_verbs():
    from brimful import Cluster, Job, Plan, Strategy

    assert {"job": Job, "cluster": Cluster, "strategy": Strategy}.items() <= get_type_hints(
        Plan
    ).items()


def test_a_list_and_a_switch_are_the_flags_of_that_name():
    answer = brimful.plan(
        "tinyllama-1.1b", **TINY, zero=0, micro_batch=[1, 2], explain=True, no_proof=True
    )
    assert answer.values["best"]["strategy"]["micro_batch"] in {1, 2}
    assert "explain" in answer.values


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"gpu": "h100"}, UnknownNameError, "did you mean gpus"),
        ({"gpus": "h300"}, UnknownNameError, "did you mean h200"),
        ({"seq_len": 0}, InputError, "give 1 or more"),
        ({"seq_len": True}, InputError, "give a value"),
        ({"optimizer_in_backward": "yes"}, InputError, "True or False"),
    ],
)
def test_what_cannot_be_used_raises_the_sentence_of_the_command_line(given, kind, said):
    with pytest.raises(kind, match=said):
        brimful.estimate("tinyllama-1.1b", **given)
    with pytest.raises(BrimfulError, match="h200"):
        brimful.shop("tinyllama-1.1b", tokens="1B", gpus="h300")


@pytest.mark.torch
def test_code_that_says_cuda_runs_on_the_pretend_gpu():
    with brimful.pretend.gpu("h100") as run:
        import torch

        layer = torch.nn.Linear(64, 64, bias=False).cuda()
        layer(torch.ones(2, 64).cuda()).sum().backward()
    assert run.peak_allocated_bytes >= 2 * 64 * 64 * 4


def test_no_such_attribute():
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'"):
        _ = brimful.frobnicate


def test_a_note_is_said_once_however_often_a_program_asks(capsys):
    forget_notes()  # which other tests may have heard
    for micro_batch in (1, 2):
        brimful.estimate("Qwen/Qwen2.5-0.5B", gpus="a100", micro_batch=micro_batch)
    said = capsys.readouterr().err
    assert said.count("model qwen2.5-0.5b is taken for") == 1
    assert said.count("--gpus a100-80gb is taken for") == 1
