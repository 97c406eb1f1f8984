"""One process of several that run cases together; see ``group.py``.

``torchrun --standalone --nproc-per-node N group_worker.py TURNS FOLDER``. It never sees the tape.
"""

import gc
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from brimful.process.library_output import quiet_libraries

quiet_libraries()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from evidence import describe_case  # noqa: E402
from group import Told, Turn  # noqa: E402
from plain_loop import RULES, Step, plain_run  # noqa: E402
from planted_routes import plant  # noqa: E402
from ragged import batches_of, samples_of  # noqa: E402
from slow_stages import message_seconds, slowed_step  # noqa: E402

from brimful.build.assemble import build_program  # noqa: E402
from brimful.build.batch import Batch, count_targets  # noqa: E402
from brimful.build.experts import expert_modules  # noqa: E402
from brimful.build.own import whole  # noqa: E402
from brimful.build.parallel.experts import RECEIVED  # noqa: E402
from brimful.build.parallel.flat import unwrapped  # noqa: E402
from brimful.build.parallel.place import own_part  # noqa: E402
from brimful.build.program import Program  # noqa: E402
from brimful.build.step import train_step  # noqa: E402
from brimful.measure.collectives import watched_collectives  # noqa: E402
from brimful.measure.meter import CpuMeter  # noqa: E402
from brimful.measure.reading import Reading  # noqa: E402
from brimful.techniques.dropout import drops  # noqa: E402
from brimful.train.checkpoint import Progress, load_checkpoint, save_checkpoint  # noqa: E402
from brimful.train.data.batches import START  # noqa: E402
from brimful.train.expert_watch import ExpertWatch  # noqa: E402
from brimful.train.stages import of_all_stages  # noqa: E402
from brimful.train.world import of_all  # noqa: E402
from brimful.values.job import PREFERENCE, Job  # noqa: E402
from brimful.values.plan import PLAN_SCHEMA, Plan  # noqa: E402
from brimful.values.results import Collective  # noqa: E402
from brimful.values.strategy import Strategy  # noqa: E402

from cases import Case  # noqa: E402  # isort: skip

_CPU = torch.device("cpu")
_NUM_METERED = 2


def take(turn: Turn) -> Told:
    """Run one turn in this process."""
    if turn.watches_experts:
        return _watched(turn)
    metered = [_metered(turn.case) for _ in range(turn.num_readings)]
    reading = min((of for of, _ in metered), key=_peak) if metered else None
    if turn.slowed_s:
        message_s = message_seconds(turn.case)
        happened, step_s = slowed_step(turn, _batches(turn.case, 0))
        return Told(losses=(), norms=(), happened=happened, step_s=step_s, message_s=message_s)
    program = build_program(turn.case.job, turn.case.strategy, _CPU)
    right = _right(turn) if turn.beside_plain and dist.get_rank() == 0 else _NOTHING
    if turn.load_from is not None:
        load_checkpoint(Path(turn.load_from), program)
    pairs, saved = [], None
    for number in range(1, turn.num_steps + 1):
        pairs.append(_step(program, turn.first_step + number - 1))
        if turn.save_to is not None and number == turn.save_after:
            saved = _save(program, Path(turn.save_to), number)
    if turn.model_to is not None:
        _hand_over(program, Path(turn.model_to))
    weights = _trained(program) if turn.beside_plain else {}
    return Told(
        losses=tuple(loss for loss, _ in pairs),
        norms=tuple(norm for _, norm in pairs),
        plain_losses=tuple(loss for loss, _ in right.steps),
        plain_norms=tuple(norm for _, norm in right.steps),
        change_error=_change_error(right, weights) if right.after else None,
        saved=saved,
        peak_bytes=None if reading is None else _peak(reading),
        peak_items={} if reading is None else {x.name: x.num_bytes for x in reading.items},
        num_targets=count_targets(_own(program, turn.first_step)),
        collectives=_told_each_other(turn.case) if turn.watches_collectives else (),
        received=metered[0][1] if metered else (),
    )


def _watched(turn: Turn) -> Told:
    """Meter steps whose experts are watched, with what was planted."""
    readings, watch, row = [], None, None
    for _ in range(turn.num_readings):
        meter = CpuMeter()
        meter.start()
        program = build_program(turn.case.job, turn.case.strategy, _CPU)
        if turn.planted is not None:
            plant(program, turn.planted)
        watch, heaviest = ExpertWatch(program), []
        for step in range(_NUM_METERED):
            _step(program, step)
            watch.after_step(is_last=False)
            if turn.case.strategy.pp == 1:  # either step may be the fuller one
                heaviest.append(watch._received.taken())  # noqa: SLF001
        meter.stop(program)
        assert meter.reading is not None
        readings.append(meter.reading)
        row = watch.row(_NUM_METERED)
        if heaviest:
            of_steps = tuple(sum(blocks, ()) for blocks in zip(*heaviest, strict=True))
            row = msgspec.structs.replace(row, received=tuple(of_all(of_steps)))
        del program
        gc.collect()
    assert watch is not None
    assert row is not None
    peak = min(map(_peak, readings))
    alarms = tuple(watch.alarms(row))
    return Told(losses=(), norms=(), peak_bytes=peak, experts=row, alarms=alarms)


def _peak(reading: Reading) -> int:
    return reading.measured_peak_allocated_bytes


def _told_each_other(case: Case) -> tuple[Collective, ...]:
    """Watch the third step: in the second DDP agrees on new buckets, once.

    Where experts are parted the second one: what is sent hangs on its tokens.
    """
    program = build_program(case.job, case.strategy, _CPU)
    last = _NUM_METERED - 1 if case.strategy.ep > 1 else _NUM_METERED
    for step in range(last):
        _step(program, step)
    with watched_collectives() as watched:
        _step(program, last)
    return watched.collectives


def _batches(case: Case, step: int) -> list[Batch]:
    samples = samples_of(case.job, step=step)
    return batches_of(case.job, samples, micro_batch=case.strategy.micro_batch)


def _own(program: Program, step: int) -> list[Batch]:
    case = Case(job=program.job, strategy=program.strategy, kernels="cpu")
    return list(own_part(_batches(case, step), program.strategy))


def _step(program: Program, step: int) -> Step:
    case = Case(job=program.job, strategy=program.strategy, kernels="cpu")
    num_targets = count_targets(_batches(case, step))
    return _taken(program, _own(program, step), num_targets=num_targets, step=step)


def _taken(program: Program, own: Sequence[Batch], *, num_targets: int, step: int) -> Step:
    result = train_step(
        program,
        own,
        num_targets=num_targets,
        learning_rate=program.job.learning_rate,
        step=step + 1,
    )
    return float(result.loss), float(result.grad_norm)


class _Right(NamedTuple):
    """What a run on one device says, and what trains in it before and after, in fp32."""

    steps: list[Step]
    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]


_NOTHING = _Right([], {}, {})
_KNOWN: dict[bytes, _Right] = {}


def _right(turn: Turn) -> _Right:
    """Run a job once on one device, by the plain loop where that has it."""
    job, strategy = turn.case.job, turn.case.strategy
    alone = Strategy(
        micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention="eager"
    )
    if not in_plain_loop(job):  # what runs together is what is rounded, and dropped, together
        alone = msgspec.structs.replace(
            alone,
            micro_batch=strategy.micro_batch,
            attention=strategy.attention,
            reference=strategy.reference,
        )
    key = msgspec.json.encode((job, turn.num_steps, alone))
    if key not in _KNOWN:
        program = build_program(job, alone, _CPU)
        before = _trained(program)
        if in_plain_loop(job):
            copied = {name: value.clone() for name, value in program.model.state_dict().items()}
            steps, model = plain_run(job, copied, num_steps=turn.num_steps)
            after = _floats(model.named_parameters())
        else:
            steps = [_step_alone(program, step) for step in range(turn.num_steps)]
            after = _trained(program)
        _KNOWN[key] = _Right(steps, before, after)
    return _KNOWN[key]


def in_plain_loop(job: Job) -> bool:
    """Whether the plain loop has all of a job: fp32, one text, a rule that it knows, no dropout."""
    is_whole = job.adapter is None or job.adapter.base == "same"
    is_plain = job.method in {"full", "lora", "dora"} and job.precision == "fp32" and is_whole
    return is_plain and job.optimizer in RULES and job.task != PREFERENCE and not drops(job)


def _trained(program: Program) -> dict[str, torch.Tensor]:
    """Gather what trains on the first process's host; of many processes all call this."""
    with unwrapped(program.model):
        named = {name: whole(p) for name, p in program.model.named_parameters() if p.requires_grad}
    return _floats(of_all_stages(program, named).items())


def _floats(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().to(torch.float32, copy=True) for name, tensor in named}


def _change_error(right: _Right, weights: dict[str, torch.Tensor]) -> float:
    """Return how far weights are from the right ones, relative to how far these have come."""
    apart = sum(float((weights[n] - right.after[n]).square().sum()) for n in right.before)
    come = sum(float((right.after[n] - was).square().sum()) for n, was in right.before.items())
    return (apart / come) ** 0.5 if come else apart**0.5


def _step_alone(program: Program, step: int) -> Step:
    """Take a step of the whole batch in this process."""
    batches = _batches(Case(job=program.job, strategy=program.strategy, kernels="cpu"), step)
    return _taken(program, batches, num_targets=count_targets(batches), step=step)


def _metered(case: Case) -> tuple[Reading, tuple[tuple[int, ...], ...]]:
    """Meter two steps, loading included, and the rows that the experts of this process got."""
    meter = CpuMeter()
    meter.start()
    program = build_program(case.job, case.strategy, _CPU)
    received = _listen(program) if case.strategy.ep > 1 else []
    for step in range(_NUM_METERED):
        _step(program, step)
    meter.stop(program)
    assert meter.reading is not None
    del program
    gc.collect()
    return meter.reading, tuple(map(tuple, received))


def _listen(program: Program) -> list[list[int]]:
    """Return lists, one for each sparse block, that grow by the rows of every forward pass here."""
    received: list[list[int]] = [[] for _ in range(program.job.model.num_layers)]

    def hear(block: int, num_rows: int) -> None:
        received[block].append(num_rows)

    for module in expert_modules(program.model):
        setattr(module, RECEIVED, hear)
    return received


def _save(program: Program, folder: Path, step: int) -> str:
    plan = Plan(
        schema=PLAN_SCHEMA,
        job=program.job,
        cluster=_no_cluster(),
        strategy=program.strategy,
        estimate=None,
    )
    progress = Progress(plan=plan, step=step, position=START, tokens_hash="", heldout_loss=None)
    return str(save_checkpoint(folder, program, progress))


def _no_cluster() -> object:
    from brimful.hardware.gpus import load_cluster

    return load_cluster(f"{dist.get_world_size()}xlocal", memory_limit_bytes=None)


def _hand_over(program: Program, folder: Path) -> None:
    from brimful.train.handover import hand_over

    hand_over(program, tokenizer_path=None, folder=folder, merged=False)


def main() -> None:
    """Take every turn, write what was seen, and leave together."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, turns, folder = dist.get_rank(), Path(sys.argv[1]), Path(sys.argv[2])
    told = []
    for turn in msgspec.json.decode(turns.read_bytes(), type=list[Turn]):
        try:
            told.append(take(turn))
        except Exception:
            print(f"rank {rank}, turn {len(told)}: {describe_case(turn.case)}", file=sys.stderr)
            raise
        gc.collect()
    (folder / f"{rank}.json").write_bytes(msgspec.json.encode(told))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process whose work is all done


if __name__ == "__main__":
    main()
