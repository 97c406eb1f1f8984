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
    assert found.notes == ("train.sh starts 2 programs, of which the first is read",)


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
        ("N=8\necho $((64 / N / 2)) $(expr 16 / $N) $((N*2-1))", "echo 4 2 15"),
        ("M=a/b-7b.sh\necho ${M##*/} ${M%.*} ${M/7b/8b} ${#M} ${M:2:1} ${N:=3}$N", "echo b-7b.sh"),
        ("L=(a b c)\necho ${L[1]} ${#L[@]}", "echo b 3"),
        ("CUDA=0,1,2\necho $(echo $CUDA | tr ',' '\\n' | wc -l)", "echo 3"),
        ("read -r -d '' C <<EOF\n--a $((1+1))\nEOF\necho $C", "echo --a 2"),
        ("C='echo a $B'\nB=2\neval $C", "echo a 2"),
        ("export B=1\nsrun bash -c 'echo $B'", "B=1 echo 1"),
        ("run() { echo $1 $#; }\nrun 7", "echo 7 1"),
        ("sbatch <<'EOF'\nA=3\nsrun echo $A\nEOF", "echo 3"),
        ("for m in a b; do\n  echo $m\ndone", "echo a"),
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


BRANCHES = """SIZE=${1:-7b}
LAYERS=1
if [ "$SIZE" = "7b" ]; then
    LAYERS=32
elif [[ $SIZE == 13b && -n "$SIZE" ]]; then LAYERS=40
else
    LAYERS=80
fi
case $SIZE in
    7b|8b) HEADS=32 ;;
    *) HEADS=40 ;;
esac
[ -z "$BATCH" ] && BATCH=2 || BATCH=3
! [[ $LAYERS -ge 40 ]] || TP=8
while [[ $# -gt 1 ]]; do
    case "$2" in --lr) LR=$3; shift 2;; *) shift ;; esac
done
echo $LAYERS $HEADS $BATCH ${TP:-1} ${LR:-none}
"""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "echo 32 32 2 1 none"),
        ("13b", "echo 40 40 2 8 none"),
        ("70b --lr 3", "echo 80 40 2 8 3"),
        ("70b a b c d e f g h --lr 3", "echo 80 40 2 8 3"),  # eleven, of which 9 are no fewer
    ],
)
def test_a_branch_is_taken_where_its_test_holds(tmp_path, given, said):
    call = call_of(f"bash {script(tmp_path, BRANCHES)} {given}".strip())
    assert started(call, lambda line: "echo" in line).line == said


def test_of_a_test_that_is_not_known_each_branch_is_read_and_said(tmp_path):
    text = "if [ $(hostname) = x ]; then A=1; else A=2; fi\necho $A"
    found = started(Call(script(tmp_path, text), {}, {}), lambda line: "echo" in line)
    assert found.line == "echo 2"
    assert found.notes == (
        "if [ $(hostname) = x ] is not known here: each of its branches is read",
    )


def test_where_what_is_given_would_choose_the_first_that_trains_is_read(tmp_path):
    text = "if [ $1 == a ]; then echo 1; elif [ $1 == b ]; then echo 2; fi"
    found = started(Call(script(tmp_path, text), {}, {}), lambda line: "echo" in line)
    assert found.line == "echo 1"
    assert found.notes == (
        "train.sh starts 2 programs, of which the first is read: what it is given would say which",
    )


def test_verbs_that_train_nothing_are_passed_over(tmp_path):
    path = script(tmp_path, "swift export --to_cached_dataset true\nswift sft --model a/b")
    assert read_script(Call(path, {}, {})).line == "swift sft --model a/b"


def test_what_a_launcher_of_ones_own_is_handed_is_read(tmp_path):
    text = (
        "python mason.py --gpus 8 -- source env.sh \\&\\& accelerate launch --num_processes 8 "
        "train.py --per_device_train_batch_size 1"
    )
    found = read_script(Call(script(tmp_path, text), {}, {}))
    assert found.line.startswith("accelerate launch --num_processes 8 train.py")


def test_processes_that_nobody_counts_are_each_gpu(tmp_path):
    found = read_script(
        Call(
            script(
                tmp_path,
                "torchrun --nproc_per_node $N -m a.b --per_device_train_batch_size 1 --bf16",
            ),
            {},
            {},
        )
    )
    assert (
        found.line == "torchrun --nproc_per_node gpu -m a.b --per_device_train_batch_size 1 --bf16"
    )


def test_a_file_is_found_from_where_a_script_is_started(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "zero3.json").write_text("{}")
    path = script(tmp_path / "scripts", "echo --a zero3.json --b=./zero3.json no.json")
    found = started(Call(path, {}, {}), lambda line: "echo" in line)
    file = tmp_path.resolve() / "zero3.json"
    assert found.line == f"echo --a {file} --b={file} no.json"
