"""Shell completion, and what is said where an extra is not installed."""

import subprocess
import sys

import pytest

from brimful.cli.main import VERBS, main


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_every_verb_and_flag_is_in_the_script(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in VERBS)
    assert "--micro-batch" in script or "micro-batch" in script


def test_bash_takes_the_script_and_completes(capsys, tmp_path):
    main(["completion", "bash"])
    script = tmp_path / "complete.sh"
    script.write_text(capsys.readouterr().out)
    asked = "COMP_WORDS=(brimful plan --micro); COMP_CWORD=2; _shtab_brimful; echo ${COMPREPLY[@]}"
    done = subprocess.run(
        ["bash", "-c", f"source {script}; {asked}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "--micro-batch"


def test_an_unknown_shell_is_one_sentence(capsys):
    assert main(["completion", "fish"]) == 2
    assert "bash" in capsys.readouterr().err


def test_without_torch_what_needs_it_says_what_to_install():
    block = (
        "import sys; [sys.modules.__setitem__(n, None) for n in ('torch', 'transformers', 'peft')];"
        "from brimful.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )

    def brimful(*words):
        return subprocess.run(
            [sys.executable, "-c", block, *words], capture_output=True, text=True, check=False
        )

    simulated = brimful("simulate", "tinyllama-1.1b", "--gpus", "a100-40gb")
    assert simulated.returncode == 2
    assert simulated.stderr.strip() == (
        "brimful: brimful simulate needs torch here, which is not installed; "
        "pip install 'brimful[train]'"
    )
    assert brimful("estimate", "tinyllama-1.1b", "--gpus", "a100-40gb").returncode == 0
