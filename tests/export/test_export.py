"""Plans as command lines and batch scripts, which are then run."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import product

import msgspec
import pytest
import yaml

from brimful.cli.main import main
from brimful.errors import UnsupportedError
from brimful.export import TARGETS, given
from brimful.export.given import Given
from brimful.models.config import load_model
from brimful.text.yaml_loader import loader
from brimful.values.plan import PLAN_SCHEMA, Plan, write_yaml
from samples import make_adapter, make_cluster, make_job, make_strategy

GIVEN = Given("plan.yaml", "my data", "runs/first")


def plan_on(num_nodes=1, each=2, kernels="cuda"):
    devices = {"num_nodes": num_nodes, "devices_per_node": each, "num_devices": num_nodes * each}
    cluster = msgspec.structs.replace(make_cluster(kernels), **devices)
    strategy = make_strategy(zero=3, dp_shard=num_nodes * each, micro_batch=1)
    job = make_job(global_batch=4 * num_nodes * each)
    return Plan(schema=PLAN_SCHEMA, job=job, cluster=cluster, strategy=strategy, estimate=None)


def last_line(text):
    return shlex.split(text.strip().splitlines()[-1])


def test_one_machine_meets_itself():
    words = last_line(TARGETS["torchrun"](plan_on(), GIVEN).text)
    assert words[:4] == ["torchrun", "--standalone", "--nproc-per-node", "2"]
    assert words[-4:] == ["--data", "my data", "--out", "runs/first"]


def test_several_machines_meet_at_the_first():
    text = TARGETS["torchrun"](plan_on(4, 8), GIVEN).text
    assert "start it on each of 4 machines" in text
    assert last_line(text)[1:3] == ["--nnodes", "4"]


@pytest.mark.torch
def test_torchrun_reads_the_line():
    from torch.distributed.run import get_args_parser

    for plan in (plan_on(), plan_on(4, 8)):
        args = get_args_parser().parse_args(last_line(TARGETS["torchrun"](plan, GIVEN).text)[1:])
        assert args.module
        assert args.training_script == "brimful"
        assert args.nproc_per_node == str(plan.cluster.devices_per_node)


def test_compiled_blocks_are_said_where_a_target_has_a_name_for_them():
    plan = plan_on(1, 2)
    job = make_job(model=load_model("llama-3.1-8b"), global_batch=8)
    strategy = msgspec.structs.replace(plan.strategy, compile="blocks")
    plan = msgspec.structs.replace(plan, job=job, strategy=strategy)
    titan, accelerate, trl = (
        TARGETS[to](plan, GIVEN) for to in ("torchtitan", "accelerate", "trl")
    )
    assert 'compile=CompileConfig(enable=True, components=["model"]),' in titan.text
    assert "import CompileConfig, DebugConfig" in titan.text
    assert "dynamo_use_regional_compilation: true" in accelerate.text
    lost = {each.field: each.why for each in trl.lost}
    assert "before FSDP wraps it" in lost["compile"]
    assert "compile" not in {each.field for each in (*titan.lost, *accelerate.lost)}


def test_settings_are_what_the_text_says_and_no_text_is_written_for_them(monkeypatch):
    """Searches for a program ask an exporter hundreds of times what it would lose."""
    plan = plan_on(1, 2)
    model = load_model("llama-3.1-8b")
    adapted = make_job(
        model=model, global_batch=8, method="lora", adapter=make_adapter(targets=("q_proj",)),
        precision="bf16-mixed",
    )  # fmt: skip
    full = make_job(model=model, global_batch=8, precision="bf16-mixed")
    spelled, texts = set(), dict(TARGETS)
    for name, job in product(texts, (adapted, full)):
        with contextlib.suppress(UnsupportedError):
            made = texts[name](msgspec.structs.replace(plan, job=job), GIVEN)
            if made.settings is not None:
                assert yaml.load(made.text, loader()) == made.settings  # noqa: S506 - a safe one
                spelled.add(name)
    assert {"trl", "axolotl", "accelerate", "hf-trainer", "llama-factory"} <= spelled
    monkeypatch.setattr(given, "yaml_text", None)
    assert TARGETS["trl"](msgspec.structs.replace(plan, job=adapted), GIVEN).settings


def test_ligers_kernels_are_said_where_a_target_has_a_name_for_them():
    plan = plan_on(1, 2)
    job = make_job(model=load_model("llama-3.1-8b"), global_batch=8, precision="bf16-mixed")
    strategy = msgspec.structs.replace(plan.strategy, fused_kernels="liger")
    plan = msgspec.structs.replace(plan, job=job, strategy=strategy)
    trainer, trl, accelerate = (
        TARGETS[to](plan, GIVEN) for to in ("hf-trainer", "trl", "accelerate")
    )
    assert "use_liger_kernel: true" in trainer.text
    assert "use_liger_kernel: true" in trl.text
    half = msgspec.structs.replace(job, precision="bf16")
    axolotl = TARGETS["axolotl"](msgspec.structs.replace(plan, job=half), GIVEN)
    assert "axolotl.integrations.liger.LigerPlugin" in axolotl.text
    assert "liger_fused_linear_cross_entropy: true" in axolotl.text
    said = (*trainer.lost, *trl.lost, *axolotl.lost)
    assert "fused_kernels" not in {each.field for each in said}
    lost = {each.field: each.why for each in accelerate.lost}
    assert "liger_kernel.transformers" in lost["fused_kernels"]


def test_slurm_is_asked_for_what_the_plan_has():
    lines = TARGETS["slurm"](plan_on(4, 8), GIVEN).text.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert {"#SBATCH --nodes=4", "#SBATCH --gpus-per-node=8", "#SBATCH --requeue"} <= {*lines}
    assert not any("gpus" in line for line in TARGETS["slurm"](plan_on(kernels="cpu"), GIVEN).text)


def test_the_allocator_of_a_plan_is_in_the_environment_of_every_process():
    plan = plan_on(4, 8)
    strategy = msgspec.structs.replace(plan.strategy, allocator="expandable_segments:True")
    plan = msgspec.structs.replace(plan, strategy=strategy)
    told = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert last_line(TARGETS["torchrun"](plan, GIVEN).text)[:3] == ["env", told, "torchrun"]
    assert f"srun env {told} torchrun --nnodes" in TARGETS["slurm"](plan, GIVEN).text


def test_comments_do_not_come_between_the_asking():
    """Slurm stops reading ``#SBATCH`` at the first line that is no comment."""
    lines = TARGETS["slurm"](plan_on(4, 8), GIVEN).text.splitlines()
    asked = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert all(line.startswith("#") for line in lines[: asked[-1]])


STAND_INS = {
    "scontrol": '#!/bin/bash\necho "localhost"\necho "node1"\n',
    "srun": '#!/bin/bash\nfor node in $(seq "$SLURM_JOB_NUM_NODES"); do "$@" & done\nwait\n',
    "torchrun": '#!/bin/bash\necho "agent $*"\n',
}
"""Slurm's commands on one machine: a process per node; there is no Slurm to ask here."""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_script_starts_an_agent_on_every_node(tmp_path):
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(TARGETS["slurm"](plan_on(2, 8), GIVEN).text)
    job = {"SLURM_JOB_NODELIST": "node[0-1]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "4711"}
    ran = subprocess.run(
        ["bash", str(tmp_path / "job.sh")], capture_output=True, text=True, check=True,
        env={**os.environ, **job, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    agents = ran.stdout.splitlines()
    assert len(agents) == 2
    assert agents[0] == agents[1] == (
        "agent --nnodes 2 --rdzv-id 4711 --rdzv-backend c10d --rdzv-endpoint localhost:30211 "
        "--nproc-per-node 8 --max-restarts 3 -m brimful train plan.yaml --data my data "
        "--out runs/first"
    )  # fmt: skip


def test_the_verb_writes_a_file(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    write_yaml(plan_on(2, 8), path)
    out = tmp_path / "job.sh"
    assert main(["export", str(path), "--to", "slurm", "-o", str(out)]) == 0
    assert f"train {path} --data DATA" in out.read_text()
    assert "wrote" in capsys.readouterr().out


def advice_on(path, capsys):
    """Return the commands that any exporter advises for a plan."""
    found = set()
    for target in TARGETS:
        capsys.readouterr()
        code = main(["export", str(path), "--to", target])
        said = capsys.readouterr()
        assert code in {0, 2}
        if code == 0:
            assert "no formula covers it" in said.out + said.err
        found |= set(re.findall(r"brimful (simulate .*)", said.out + said.err))
    return found


@pytest.mark.torch
def test_what_is_advised_is_not_refused(tmp_path, capsys):
    path = tmp_path / "a plan.yaml"
    alone = msgspec.structs.replace(plan_on(each=1), strategy=make_strategy())
    write_yaml(alone, path)
    (command,) = advice_on(path, capsys)
    assert main(shlex.split(command)) in {0, 1}


def test_what_would_be_refused_is_not_advised(tmp_path, capsys):
    path, plan = tmp_path / "plan.yaml", plan_on()
    deepspeed = msgspec.structs.replace(plan.strategy, engine="deepspeed", accumulate="reduce-each")
    write_yaml(msgspec.structs.replace(plan, strategy=deepspeed), path)
    assert not advice_on(path, capsys)
    assert main(["simulate", str(path)]) == 2
    assert "is not simulated within our own loop" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["llama-3.1-8b", "--to", "slurm"], "is no plan"),
        (["plan.yaml", "--to", "slrum"], "did you mean slurm"),
        (["plan.yaml"], "--to"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(arguments, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_it_needs_no_torch(tmp_path):
    path = tmp_path / "plan.yaml"
    write_yaml(plan_on(), path)
    code = (
        "import sys; from brimful.cli.main import main; "
        f"main(['export', {str(path)!r}, '--to', 'torchrun']); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
