"""Shell scripts are read as the command line that they start, and none of them is run."""

import pytest

from brimful.cli.main import main
from brimful.errors import InputError
from brimful.programs.settings import read_script
from brimful.programs.shell_scripts import Call, call_of, started

SLURM = r"""#!/bin/bash
#SBATCH --nodes=2
set -e
export OMP_NUM_THREADS=4 HIDDEN=$(cat secret)
GPUS=8
NODES=${SLURM_NNODES:-2}
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MODEL="Qwen/Qwen3-8B"   # ours
LAUNCH="
    --nproc_per_node $GPUS --nnodes ${NODES}
    --master_addr $HEAD
"
TRAIN=(
    --model_name_or_path "$MODEL"   # a comment
    --bf16 --per_device_train_batch_size 1
)
TRAIN+=(--max_length 512)
cat > ds.json <<EOF
{"model": $MODEL; "swift": "(}"}
EOF
pip install axolotl && cd swift
if [ "$1" = x ]; then echo 'python train.py --bf16'; fi
nohup torchrun $LAUNCH train.py "${TRAIN[@]}" --data "my data/$2" --seed $SEED \
    --out='a b' "$@" > log.txt 2>&1 &
"""
LINE = (
    "OMP_NUM_THREADS=4 torchrun --nproc_per_node 8 --nnodes 2 train.py --model_name_or_path "
    "Qwen/Qwen3-8B --bf16 --per_device_train_batch_size 1 --max_length 512 --data 'my data/' "
    "'--out=a b'"
)
SWIFT = """# from the README
CUDA_VISIBLE_DEVICES=0,1 \\
NPROC_PER_NODE=2 \\
swift sft \\
    --model Qwen/Qwen3-8B \\
    --train_type lora \\
    --torch_dtype bfloat16 \\
    --max_length 512
swift infer --model out
swift sft --model Qwen/Qwen3-4B
"""


def script(tmp_path, text):
    path = tmp_path / "train.sh"
    path.write_text(text)
    return path


def test_variables_lists_and_continued_lines_make_one_command_line(tmp_path):
    found = read_script(Call(script(tmp_path, SLURM), {}, {}))
    assert found.line == LINE
    assert found.notes == tuple(
        f"{each} is left out: not known here"
        for each in (
            '--master_addr $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "$2", "--seed $SEED", "$@",
        )
    )  # fmt: skip


def test_of_several_programs_the_first_is_read_and_said(tmp_path):
    found = read_script(Call(script(tmp_path, SWIFT), {}, {}))
    assert found.line.startswith("CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 swift sft --model Qwen")
    assert found.line.endswith("--max_length 512")
    assert found.notes == ("train.sh starts 3 programs, of which the first is read",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A=b\necho ${A:-c} ${B:-d e} ${C} \"${A}x\" 'it is $A' \\$A", "echo b d e bx 'it is $A' "),
        ("A=(1 '2 3')\necho \"${A[@]}\" x", "echo 1 '2 3' x"),
        ("srun --ntasks 1 echo", "echo"),
        ("mpirun -np 8 --bind-to=none env A=1 echo", "A=1 echo"),
        ("time env X=1 echo `date` \ue0009\ue001", "X=1 echo 9"),
        ('echo "unclosed $(', "echo 'unclosed '"),
        ("echo --steps 1 > log 2>&1", "echo --steps 1"),
        ("echo 1 2>> log", "echo 1"),
        ("read x <<< 'a b'\necho c", "echo c"),
        ("# old: --lr 1 \\\necho c", "echo c"),
    ],
)
def test_words_are_expanded_as_a_shell_does(tmp_path, text, said):
    found = started(Call(script(tmp_path, text), {}, {}), lambda line: "echo" in line)
    assert found.line.startswith(said)


def test_what_is_left_out_is_said_as_it_stands_there(tmp_path):
    found = started(Call(script(tmp_path, "echo --at=$HERE:29500 --in a/$B"), {}, {}), bool)
    assert found.notes == (
        "--at=$HERE:29500 is left out: not known here", "$B is left out: not known here",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "behind", "said"),
    [
        ("", "", "N=4 echo 4 8"),
        ("TP=2 bash ", "", "TP=2 N=2 echo 2 8"),
        ("env TP=2 N=9 sbatch --nodes=2 ", "16 'a b'", "TP=2 N=2 echo 2 16 a b 16 'a b'"),
    ],
)
def test_what_a_script_is_started_with_is_its_own(tmp_path, before, behind, said):
    """Variables before it, and what stands behind it, as on the line that starts it."""
    text = 'export N=${TP:-4}\necho $N ${1:-8} $2 "$@"'
    call = call_of(f"{before}{script(tmp_path, text)} {behind}".strip())
    found = started(call, lambda line: "echo" in line)
    assert found.line == said
    assert not any("@" in note for note in found.notes) or not before


@pytest.mark.parametrize("text", ["python train.py --lr 1", "bash 'x.sh", "bash no.sh", "bash"])
def test_what_starts_no_script_is_none(text):
    assert call_of(text) is None


def test_a_script_that_trains_nothing_known_is_refused(tmp_path):
    with pytest.raises(InputError, match="starts no program that trains"):
        read_script(Call(script(tmp_path, "pip install swift\nls"), {}, {}))


def test_a_script_is_planned_as_what_it_starts(tmp_path, capsys):
    path = script(tmp_path, SWIFT.replace("Qwen3-8B", "Qwen3-0.6B"))
    assert main(["plan", "--from", str(path), "--gpus", "2xrtx-4090", "--no-proof"]) == 0
    said = capsys.readouterr()
    assert "train.sh is read as what it starts: CUDA_VISIBLE_DEVICES=0,1" in said.err
    assert "LoRA of qwen3-0.6b at 512 tokens on 2 x RTX 4090" in said.out
    assert "settings that ms-swift takes" in said.out
