"""Simulating a plan: build it on the pretend GPU, take two steps, read the tape."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch.distributed.device_mesh import init_device_mesh

from brimful.allocator.bounds import most_beside
from brimful.build import phases
from brimful.build.arranged import arrange_blocks
from brimful.build.assemble import HOST, build_skeleton, finish_program
from brimful.build.batch import Batch
from brimful.build.fp8_layers import use_fp8
from brimful.build.loss import CHUNK
from brimful.build.offload import host as offload_host
from brimful.build.parallel.experts import expert_parallel
from brimful.build.parallel.mesh import EXPERTS
from brimful.build.parallel.narrow import narrow_inputs
from brimful.build.precision import PARAMETER_DTYPE
from brimful.build.program import Program, gradients, state_tensors
from brimful.build.reference import reference_skeleton, state_of
from brimful.build.step import train_step
from brimful.build.tasks import task_of
from brimful.cost.outside import num_groups
from brimful.cost.stage_site import fullest_ranks
from brimful.hardware.cluster import Cluster
from brimful.pretend import device, guard, kernels
from brimful.pretend.blocks import NotPeriodicError, UnlikeBlocksError
from brimful.pretend.calls import fill
from brimful.pretend.recording import Recording
from brimful.pretend.repeated_body import repeat_body
from brimful.pretend.repeats import repeat_blocks
from brimful.pretend.rounds import UnlikeRoundsError, leaving_out, put_rounds
from brimful.pretend.skipping import Chosen, Skipper
from brimful.pretend.stand_ins import stand_in
from brimful.pretend.tape import Tape, go_on
from brimful.simulate.capacity import reserve_for
from brimful.simulate.chosen import chosen_of
from brimful.simulate.items import read_simulation
from brimful.simulate.messages import collectives_of_step
from brimful.simulate.phases import Continuation, state_made
from brimful.simulate.pretending import (
    ended_as_asked,
    pretending,
    with_values_where_asked,
)
from brimful.simulate.series import blocks_of, body_in, may_stand_in, series_of
from brimful.simulate.unrolled import keeps_all_blocks, record_whole
from brimful.simulate.worlds import experts_world, fullest_rank, world_of
from brimful.techniques.kernel_support import (
    Place,
    check_attention,
    check_fused,
    check_precision,
    check_values,
)
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.techniques.parallel.routing import BALANCED, Routing
from brimful.techniques.runnable import check_simulated
from brimful.values.job import Job, Precision
from brimful.values.results import (
    GRADIENTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    REFERENCE,
    Reserved,
    Simulation,
)
from brimful.values.strategy import Strategy, num_micro_batches, world_size

NUM_STEPS = 2
"""In the first step kernels and buckets are made ready; every later one is like the second."""
DEFAULT_CAPABILITY = 9.0
MAX_MICRO_BATCHES = 2
"""The first micro-batch makes the gradients, every later one adds to them like the second."""
MAX_HELD = 3
"""Where gradients are held, the last micro-batch is unlike those between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Recordings of a device and its host, and the seconds it took to make them.

    Attributes:
        recording: Of the device.
        host: Of its host.
        simulate_s: Seconds.
        unknown_ops: Operators of whose kernels' own memory nothing is known.
        bounded: The most that a call may have taken of each of which only that is known.
    """

    recording: Recording
    host: Recording
    simulate_s: float
    unknown_ops: frozenset[str]
    bounded: dict[str, int]


class Simulated(NamedTuple):
    """What a simulation says, and the recordings of the device and of the host it speaks of."""

    simulation: Simulation
    recording: Recording
    host: Recording


def simulate(
    job: Job,
    cluster: Cluster,
    strategy: Strategy,
    *,
    rank: int | None = None,
    routing: Routing = BALANCED,
) -> Simulation:
    """Run a plan's own program on the pretend GPU; see ``simulate_recorded``."""
    return simulate_recorded(job, cluster, strategy, rank=rank, routing=routing).simulation


def simulate_recorded(  # noqa: PLR0913 - a plan, and what of it is asked
    job: Job,
    cluster: Cluster,
    strategy: Strategy,
    *,
    rank: int | None = None,
    routing: Routing = BALANCED,
    count_costs: bool = False,
    on_op: Callable[[], None] = go_on,
) -> Simulated:
    """Run a plan's own program on the pretend GPU, and keep what it allocated.

    ``cluster``: its device says whose kernels are imitated, and how much the allocator can have.
    ``rank``: which of many devices is simulated; None: one that holds as much as any. ``routing``:
    how many rows its experts get, where devices part them. ``count_costs``: whether the recording
    says too what operations compute. ``on_op``: called before every operation; what it raises ends
    the simulation. Returns peak live bytes, by item and phase, and on a GPU what the caching
    allocator makes of them; and every allocation and free. Exact for the tensors of eager PyTorch;
    kernels' workspaces are of a table. Raises InputError: an allocator setting is unknown, or there
    is no such rank.
    """
    if rank is None and strategy.pp > 1:
        ranks = fullest_ranks(job, strategy)
        how: dict[str, Any] = {"routing": routing, "count_costs": count_costs, "on_op": on_op}
        each = (simulate_recorded(job, cluster, strategy, rank=r, **how) for r in ranks)
        return max(each, key=fullness)
    device, start = cluster.device, time.perf_counter()
    traces: list[Traced] = []
    of_all: dict[str, Any] = {
        "imitate": device.kernels,
        "capability": device.capability,
        "rank": rank,
        "count_costs": count_costs,
        "count_messages": world_size(strategy) > 1,
        "routing": routing,
        "on_op": on_op,
    }

    def record(job: Job, strategy: Strategy) -> Recording:
        traces.append(_traced(job, strategy, **of_all))
        return traces[-1].recording

    if routing.received:  # every block is of its own
        recording = record(job, strategy)
    else:
        recording = record_whole(job, strategy, record, counts_costs=count_costs)
    host = traces[-1].host  # where something is kept there the whole was traced, once
    if len(traces) > 1 and keeps_all_blocks(job, strategy):  # which no step has to show
        host = _traced(job, strategy, **of_all, num_steps=0, then=(state_made,)).host
    simulation = read_simulation(
        recording,
        kernels=device.kernels,
        reserved=_reserved(recording, cluster, strategy, traces),
        simulate_s=time.perf_counter() - start,
        collectives=collectives_of_step(
            recording, step=NUM_STEPS, num_micro_batches=num_micro_batches(job, strategy)
        ),
        host=host,
        unknown_ops={op for traced in traces for op in traced.unknown_ops},
    )
    return Simulated(simulation, recording, host)


def _reserved(
    recording: Recording, cluster: Cluster, strategy: Strategy, traces: Iterable[Traced]
) -> Reserved | None:
    """Return what the caching allocator makes of a recording, with what may be beside it."""
    return reserve_for(
        recording,
        cluster,
        allocator=strategy.allocator,
        num_groups=num_groups(strategy),
        beside_bytes=most_beside(_bounded(traces).values()),
    )


def _bounded(traces: Iterable[Traced]) -> dict[str, int]:
    """Return the most that a call may have taken of each operator of which only that is known."""
    most: dict[str, int] = {}
    for traced in traces:
        for op, num_bytes in traced.bounded.items():
            most[op] = max(num_bytes, most.get(op, 0))
    return most


def fullness(simulated: Simulated) -> tuple[int, int, int]:
    """Order devices by how badly they fare: what they lack, retries, the largest live total."""
    reserved = simulated.simulation.reserved
    lacks = (reserved.short_bytes, reserved.num_retries) if reserved else (0, 0)
    return *lacks, simulated.simulation.simulated_peak_allocated_bytes


@with_values_where_asked
def trace(  # noqa: PLR0913 - what is traced, on what, and how much of it
    job: Job,
    strategy: Strategy,
    *,
    imitate: kernels.Kernels,
    capability: float = DEFAULT_CAPABILITY,
    count_costs: bool = False,
    count_messages: bool = False,
    num_steps: int = NUM_STEPS,
    then: Sequence[Continuation] = (),
    rank: int | None = None,
    routing: Routing = BALANCED,
    chosen: Chosen | None = None,
    parted: int = 1,
    narrowed_from: Precision | None = None,
    stands_in: bool = False,
    repeats: bool = False,
    arranged: Sequence[int] = (),
    leaves_out: bool = False,
    on_op: Callable[[], None] = go_on,
    knows: bool = False,
) -> Traced:
    """Record optimizer steps, each with as many micro-batches as differ.

    ``capability``: CUDA compute capability, e.g. 9.0; of no meaning for ``cpu``. ``count_costs``:
    whether to record each operation's FLOPs and bytes as well. ``count_messages``: whether to
    record what each collective sends. ``num_steps``: how many; two show every phase, one is enough
    for forward and backward. ``then``: what the program does behind them, in order
    (``simulate.phases``). ``rank``: as for ``simulate``. ``chosen``: which micro-batches of a
    pipeline are run; the others are filled in. None: all. ``parted``: devices that part the experts
    of a model that is spread in no other way, as no run is: what a profile is made of, to which
    sharding adds events (``cost.spread``). ``narrowed_from``: a mixed recipe whose parameters are
    gathered in the types of this job's, so that FSDP2 casts what comes into a block; likewise.
    ``stands_in``: whether few blocks are run and the others stand for themselves, where they may.
    ``repeats``: whether blocks do again what they did, where they are given the same shape again.
    ``arranged``: blocks that are run in the place of all, which the job's model has as many of as
    it says; none: all of them. ``leaves_out``: whether few rounds of long loops run, and the others
    are put in afterwards. ``on_op``: called before every operation; what it raises ends the
    simulation. ``knows``: whether known integers are kept, as they are where a class ended that
    asked for one. Raises NotPeriodicError: micro-batches that should be alike are not; trace all.
    Raises UnlikeBlocksError: blocks that should be alike are not; trace without stand-ins. Raises
    UnlikeRoundsError: rounds of a loop that should be alike are not; leave none out.
    """
    place = Place(imitate, capability)
    _check(job, strategy, place)
    device.register()
    start = time.perf_counter()
    net = build_skeleton(job, strategy)
    shorten = arrange_blocks(net, arranged) if arranged else go_on
    reference = reference_skeleton(job, strategy)
    sample = task_of(job).sample(job, strategy)  # a user's own may compute: outside the fake mode
    tape = Tape(count_costs=count_costs, count_messages=count_messages, on_op=on_op)
    world = world_of(job, strategy, tape, rank) if parted == 1 else experts_world(parted, tape)
    with ended_as_asked(tape), pretending(tape, place, world, routing, strategy, net, knows=knows):
        gpu = torch.device("gpu:0")
        host = gpu if imitate == "cpu" else HOST  # a CPU's own memory is the host's
        if parted > 1:
            expert_parallel(net, init_device_mesh("gpu", (parted,), mesh_dim_names=(EXPERTS,)))
        with offload_host.listening(_keeping(tape)):
            program = finish_program(job, strategy, gpu, net, reference=reference, host=host)
        shorten()
        if narrowed_from is not None:
            narrow_inputs(program.model, PARAMETER_DTYPE[job.precision])
            use_fp8(program.model, replace(job, precision=narrowed_from), emulate=host == gpu)
        if OPTIMIZERS[job.optimizer].compiled:
            program.optimizer.imitate(imitate)
        _name(tape, program)
        _abbreviate(tape, program, repeats=repeats, stands_in=stands_in)
        skipper = _skipper(tape, program, chosen)
        less = leaving_out(tape, program.model) if leaves_out else nullcontext()
        with less, guard.errors_come_through(), offload_host.listening(_keeping(tape)):
            _take_steps(tape, program, blank := _without_values(sample), num_steps, skipper)
            for continuation in then:
                continuation(tape, program, blank)
    return Traced(
        recording=_filled(tape.finish(), skipper),
        host=tape.finish("cpu"),
        simulate_s=time.perf_counter() - start,
        unknown_ops=frozenset(tape.unknown_ops),
        bounded=tape.bounded,
    )


def _filled(recording: Recording, skipper: Skipper | None) -> Recording:
    """Put on a tape what did not run: micro-batches, and rounds of loops."""
    return put_rounds(recording if skipper is None else fill(recording, skipper.calls))


def _check(job: Job, strategy: Strategy, place: Place) -> None:
    """Refuse what the kernels that are imitated cannot run."""
    check_values(job)
    check_precision(job, place)
    check_attention(job, strategy.attention, place)
    check_fused(strategy, place)
    check_simulated(strategy)


def _abbreviate(tape: Tape, program: Program, *, repeats: bool, stands_in: bool) -> None:
    """Run blocks once that do the same again, and few in the place of many, where they may."""
    if repeats:
        has_odd = repeat_blocks(tape, blocks_of(program))
        path, body = body_in(program)
        repeat_body(tape, path, body, has_odd)
    if stands_in and may_stand_in(program.job, program.strategy):
        stand_in(tape, series_of(program))


def _traced(job: Job, strategy: Strategy, *, rank: int | None, **how: Any) -> Traced:
    """Trace steps; of a pipeline with few micro-batches where these show what the others do."""
    chosen = chosen_of(job, strategy, fullest_rank(job, strategy) if rank is None else rank)
    is_alike = not how["routing"].received  # which says that blocks and micro-batches differ
    chosen, stands_in, leaves_out = chosen if is_alike else None, is_alike, is_alike
    while chosen is not None or stands_in or leaves_out:
        how |= {"chosen": chosen, "stands_in": stands_in, "leaves_out": leaves_out}
        try:
            return trace(job, strategy, rank=rank, **how)
        except UnlikeRoundsError:
            leaves_out = False
        except UnlikeBlocksError:
            stands_in = False
        except NotPeriodicError:  # of micro-batches, which only those that are left out can be
            chosen = None
    how |= {"chosen": None, "stands_in": False, "leaves_out": False}
    return trace(job, strategy, rank=rank, **how)


def _name(tape: Tape, program: Program) -> None:
    tape.name_modules(program.model)
    tape.owners.name(program.loss, "loss")  # what the head computes; its weight is the model's
    if program.reference is not None:
        tape.name_modules(program.reference.model)
        tape.tag(state_of(program.reference), REFERENCE)
    tape.tag(program.model.parameters(), PARAMETERS)
    tape.tag(program.model.buffers(), "buffers")


def _without_values(sample: Batch) -> Batch:
    """Make a batch of the same shapes under the fake mode that is entered."""
    blank = (
        None if x is None else torch.zeros(x.shape, dtype=x.dtype, device="cpu") for x in sample
    )
    return Batch(*blank)


def num_simulated(job: Job, strategy: Strategy) -> int:
    """Count the micro-batches of a step that are simulated; others are like one of these."""
    num_batches = num_micro_batches(job, strategy)
    if strategy.pp > 1:  # what is in flight hangs on their number
        return num_batches
    return min(num_batches, MAX_HELD if strategy.accumulate == "hold" else MAX_MICRO_BATCHES)


def _take_steps(
    tape: Tape, program: Program, sample: Batch, num_steps: int, skipper: Skipper | None
) -> None:
    job, strategy = program.job, program.strategy
    batches = [sample] * num_simulated(job, strategy)
    num_targets = num_micro_batches(job, strategy) * sample.labels.numel()
    for step in range(1, num_steps + 1):
        if skipper is not None:
            skipper.begin_step(step)
        with phases.listening(listener(tape, step)):
            train_step(program, batches, num_targets=num_targets, learning_rate=job.learning_rate)


def _keeping(tape: Tape) -> offload_host.Listener:
    """Tell the tape what host memory is taken for."""

    def listen(purpose: str, begins: bool) -> None:  # noqa: FBT001
        tape.keep_on_host(purpose if begins else "")

    return listen


def _skipper(tape: Tape, program: Program, chosen: Chosen | None) -> Skipper | None:
    if chosen is None or program.pipeline is None:
        return None
    return Skipper(tape, program.pipeline._stages, chosen)  # noqa: SLF001 - nobody else asks


def listener(tape: Tape, step: int) -> phases.Listener:
    """Tell the tape where phases begin, and at their ends what has become what."""

    def listen(name: str, begins: bool, program: Program) -> None:  # noqa: FBT001
        if name == CHUNK:
            if begins:
                tape.mark()
            return
        if begins:
            tape.begin_phase(f"step {step} {name}")
            return
        if name == "backward":
            tape.tag(gradients(program), GRADIENTS)
        if name == "optimizer":
            tape.tag(state_tensors(program), OPTIMIZER_STATE)

    return listen
