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
    assert launched(typed.split())[:2] == (program.split(), None)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("typed", "program", "num"),
    [
        ("torchrun --standalone --nproc_per_node=4 train.py --nnodes 9", "train.py --nnodes 9", 4),
        ("torchrun --nnodes=2 --nproc-per-node 8 -m pkg.train", "-m pkg.train", 16),
        ("python -m torch.distributed.run train.py", "train.py", 1),
        ("deepspeed --num_gpus=4 train.py --lr 1", "train.py --local_rank=1 --lr 1", 4),
        ("deepspeed --no_local_rank --include localhost:0,2 --module pkg", "-m pkg", 2),
        ("accelerate launch --num_processes 4 -m pkg.train --lr 1", "-m pkg.train --lr 1", 4),
        ("python -m accelerate.commands.launch --num_processes 1 a.py", "a.py", 1),
    ],
)
def test_a_launcher_says_how_many_processes_there_are(typed, program, num):
    assert launched(typed.split(), rank=1)[:2] == (program.split(), num)


@pytest.mark.torch
def test_accelerate_finds_one_gpu_where_nobody_says_how_many():
    found = launched(["accelerate", "launch", "train.py"])
    assert found[:2] == (["train.py"], 1)
    assert "--num_processes N" in found.finds
    said = launched(["accelerate", "launch", "--num_processes", "1", "train.py"])
    assert said[:2] == (["train.py"], 1)
    assert said.finds == ""


@pytest.mark.torch
def test_what_accelerate_s_file_says_is_in_the_environment(tmp_path):
    path = tmp_path / "fsdp.yaml"
    path.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\n"
        "num_machines: 1\nnum_processes: 8\nfsdp_config: {fsdp_version: 2}\n",
        "utf-8",
    )
    found = launched(["accelerate", "launch", "--config_file", str(path), "train.py"])
    assert (found.program, found.num_processes) == (["train.py"], 8)
    told = {name: found.environment[name] for name in ("ACCELERATE_USE_FSDP", "FSDP_VERSION")}
    assert told == {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    assert found.environment["ACCELERATE_MIXED_PRECISION"] == "bf16"


@pytest.mark.torch
@pytest.mark.parametrize(
    "typed",
    [
        "torchrun", "torchrun --no x.py", "torchrun --nproc_per_node=gpu x.py",
        "deepspeed train.py", "deepspeed --num_gpus x train.py", "deepspeed",
        "accelerate config", "accelerate launch --no x.py",
        "accelerate launch --num_processes 2 --cpu --multi_gpu x.py",
    ],
)  # fmt: skip
def test_what_a_launcher_cannot_say_is_refused(typed):
    with pytest.raises(InputError, match=typed.split()[0]):
        launched(typed.split())


def test_other_launchers_are_named():
    with pytest.raises(InputError, match="name the script itself"):
        check_program(["srun", "train.py"])


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
