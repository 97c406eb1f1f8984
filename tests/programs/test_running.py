"""A program that is known is run as it is: ranks, peaks, answers, refusals."""

import json

import pytest

from brimful.cli.main import main
from brimful.programs import reading
from brimful.programs.base import Program, Rank
from brimful.units import MIB

pytestmark = pytest.mark.torch

TOY = """
import os, sys
import torch

rank = int(os.environ["RANK"])
torch.zeros((rank + 1) * 2**20, dtype=torch.uint8, device="cuda")
if "--fail" in sys.argv:
    raise ValueError("no such thing")
made = next((word for word in sys.argv if word.endswith(".so")), None)
if made and rank == 0:
    open(made, "w").close()
if made and not (os.path.exists(made) and os.path.exists(made + ".asked")):
    open(made + ".asked", "w").close()
    if rank:
        raise FileNotFoundError(made)
print("said by the program")
"""


def toy(command, world_size):
    ranks = (Rank(0, "the first"), Rank(3, "the last"))
    return Program(
        name="a toy", argv=(command.script, *command.arguments), world_size=world_size or 4,
        ranks=ranks, assume=(), environment={"TOY": "1"}, notes=("nothing is learnt",),
    )  # fmt: skip


@pytest.fixture
def script(tmp_path, monkeypatch):
    path = tmp_path / "toy.py"
    path.write_text(TOY, "utf-8")
    monkeypatch.setitem(reading.PROGRAMS, "toy.py", toy)
    return path


def test_each_rank_is_run_and_the_fullest_is_the_answer(script, capfd):
    assert main(["simulate", "--from", f"{script} --quick", "--gpus", "h100"]) == 0
    said = capfd.readouterr().out
    assert len(said.splitlines()) <= 12
    assert said.startswith("FITS      a toy on 4 x ")
    assert "rank 0    1.00 MiB allocated" in said
    assert "rank 3    4.00 MiB allocated" in said
    assert "nothing is learnt" in said
    assert "said by the program" not in said


def test_what_the_first_process_makes_for_all_is_waited_for(script, tmp_path, capfd):
    made = tmp_path / "helpers.so"
    assert main(["simulate", "--from", f"{script} {made}", "--gpus", "h100"]) == 0
    assert "rank 3    4.00 MiB allocated" in capfd.readouterr().out


def test_as_json_it_has_each_rank(script, capfd):
    assert main(["simulate", "--from", str(script), "--gpus", "h100", "--rank", "1", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert [rank["rank"] for rank in told["ranks"]] == [1]
    assert told["simulated_peak_allocated_bytes"] == 2 * MIB
    (rank,) = told["ranks"]
    outside = rank["simulated_process_bytes"] - rank["simulated_peak_reserved_bytes"]
    assert 0.8e9 < outside < 2.5e9  # a context, and a group of four processes


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--from", "{} --fail"), "rank 0 of a toy ended with ValueError: no such thing"),
        (("--from", "{}", "--rank", "9"), "--rank 9 is not in a world of 4; use 0 to 3"),
        (("llama-3.1-8b", "--from", "{}"), "llama-3.1-8b stands beside --from"),
        (("--from", "other.py"), "was given other.py"),
        ((), "simulate was given no MODEL"),
        (("llama-3.1-8b", "--world-size", "2"), "--world-size 2 belongs to --from"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(script, capfd, flags, said):
    argv = [flag.format(script) for flag in flags]
    assert main(["simulate", *argv, "--gpus", "h100"]) == 2
    err = capfd.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_plan_refuses_a_program(script, capfd):
    argv = ["plan", "llama-3.1-8b", "--gpus", "h100", "--from", f"{script} --quick"]
    assert main(argv) == 2
    assert "plan takes no program of another framework" in capfd.readouterr().err


def test_estimate_refuses_a_program_that_has_no_formula(script, capfd):
    assert main(["estimate", "--gpus", "h100", "--from", f"{script} --quick"]) == 2
    assert "toy.py has no formula" in capfd.readouterr().err
