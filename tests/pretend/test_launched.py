"""What a command line runs, and what a notebook is as a script."""

import json

import pytest

from brimful.errors import InputError
from brimful.pretend.scripts import check_program, launched, run_program, script_of

CELLS = [
    {"cell_type": "markdown", "source": ["# told"]},
    {"cell_type": "code", "source": ["%pip install x\n", "seen = [__name__]\n", "!ls"]},
    {"cell_type": "code", "source": ["%%bash\n", "exit 1"]},
    {"cell_type": "code", "source": "%%time\nif seen:\n    !nvidia-smi\nseen += ['timed']"},
    {"cell_type": "code", "source": "import sys; sys.stdout.write(f'{seen} {sys.argv[1:]}')"},
]


@pytest.mark.parametrize(
    ("typed", "program"),
    [
        ("train.py --lr 3", "train.py --lr 3"),
        ("python train.py", "train.py"),
        ("/usr/bin/python3.11 -u train.py -m", "train.py -m"),
        ("python -m pkg.train a", "-m pkg.train a"),
    ],
)
def test_an_interpreter_is_taken_off(typed, program):
    assert launched(typed.split()) == (program.split(), None)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("typed", "program", "num"),
    [
        ("torchrun --standalone --nproc_per_node=4 train.py --nnodes 9", "train.py --nnodes 9", 4),
        ("torchrun --nnodes=2 --nproc-per-node 8 -m pkg.train", "-m pkg.train", 16),
        ("python -m torch.distributed.run train.py", "train.py", 1),
    ],
)
def test_torchrun_says_how_many_processes_there_are(typed, program, num):
    assert launched(typed.split()) == (program.split(), num)


@pytest.mark.torch
@pytest.mark.parametrize(
    "typed", ["torchrun", "torchrun --no x.py", "torchrun --nproc_per_node=gpu x.py"]
)
def test_what_torchrun_cannot_say_is_refused(typed):
    with pytest.raises(InputError, match="torchrun"):
        launched(typed.split())


def test_other_launchers_are_named():
    with pytest.raises(InputError, match="name the script itself"):
        check_program(["accelerate", "launch", "train.py"])


def test_a_notebook_is_run_without_what_is_no_python(tmp_path, capsys):
    path = tmp_path / "my.ipynb"
    path.write_text(json.dumps({"cells": CELLS}))
    check_program([str(path)])
    run_program([str(path), "7"])
    assert capsys.readouterr().out == "['__main__', 'timed'] ['7']"
    assert "bash" not in script_of(path)


@pytest.mark.parametrize("text", ["null", "[]", '{"cells": 3}', '{"cells": [{}]}', "no"])
def test_what_is_no_notebook_is_refused(tmp_path, text):
    path = tmp_path / "my.ipynb"
    path.write_text(text)
    with pytest.raises(InputError, match="no notebook"):
        check_program([str(path)])
