"""Groups of processes under the precision doctor's eyes: what they are asked, what they say."""

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from precision_cases import NUM_STEPS, SCRIPT, Planted, group_faults, scale_cases, steps_of
from torch.multiprocessing import spawn

from brimful.build.assemble import build_program
from brimful.build.own import own_memory
from brimful.build.program import Program
from brimful.build.step import train_step
from brimful.doctor.examination import ExamineSettings
from brimful.doctor.findings import Finding
from brimful.train.examine import examine

_CPU = torch.device("cpu")
_TIMEOUT = dt.timedelta(seconds=120)
EVERY = 2


class Scaled(msgspec.Struct, frozen=True, kw_only=True):
    """What the loss scale of one process did.

    Attributes:
        steps: Of each step its scale, and whether it was skipped.
        num_changed: Skipped steps that changed a weight all the same.
    """

    steps: tuple[tuple[float, bool], ...]
    num_changed: int


def found_by(planted: Planted) -> tuple[Finding, ...]:
    """Plant a fault and return what is found, in this process."""
    program = build_program(planted.case.job, planted.case.strategy, _CPU)
    steps = planted.plant(program, steps_of(planted.case))
    settings = ExamineSettings(num_steps=NUM_STEPS, every=EVERY)
    return examine(program, steps, settings).findings


def scaled_by_script(number: int) -> Scaled:
    """Train a case whose last process has an Inf in the steps that the script names."""
    case = scale_cases()[number]
    program = build_program(case.job, case.strategy, _CPU)
    samples, found, num_changed = steps_of(case), [], 0
    ill = dist.get_rank() == dist.get_world_size() - 1 if dist.is_initialized() else True
    now = [True]
    if ill:
        _poison(program, now)
    for step, is_finite in enumerate(SCRIPT):
        now[0] = is_finite
        before = _sum_of(program)
        part = samples[step % len(samples)]
        result = train_step(
            program, part.micro_batches, num_targets=part.num_targets, learning_rate=1e-3
        )
        found.append((float(result.loss_scale or 0), result.skipped))
        num_changed += result.skipped and _sum_of(program) != before
    return Scaled(steps=tuple(found), num_changed=num_changed)


def _poison(program: Program, is_finite: list[bool]) -> None:
    def hook(_module: Any, _args: Any, out: torch.Tensor) -> None:
        if out.requires_grad and not is_finite[0]:
            out.register_hook(lambda arrived: arrived * float("inf"))

    program.model.get_submodule("model.layers.1.mlp.down_proj").register_forward_hook(hook)


def _sum_of(program: Program) -> float:
    return sum(float(own_memory(p).detach().double().sum()) for p in program.model.parameters())


def told(num: int, faults: Sequence[int], scales: Sequence[int]) -> list[tuple[Any, Any]]:
    """Run cases one after another in one group.

    Args:
        num: Processes.
        faults: Places in ``group_faults`` of cases of as many devices.
        scales: Places in ``scale_cases``.

    Returns:
        By rank: the findings of each fault, and what each loss scale did.
    """
    with TemporaryDirectory() as folder:
        spawn(_work, args=(num, tuple(faults), tuple(scales), folder), nprocs=num)
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(num)]


def _work(
    rank: int, num: int, faults: tuple[int, ...], scales: tuple[int, ...], folder: str
) -> None:
    torch.set_num_threads(1)
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=num, timeout=_TIMEOUT)
    findings = [found_by(group_faults()[number]) for number in faults]
    answers = (findings, [scaled_by_script(number) for number in scales])
    torch.save(answers, Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's own end trips over gloo's threads now and then
