"""Tracing the program of one model when it is first asked for, at the model's own widths.

A model with six of its blocks shows every role, as in ``simulate.profile``; on the pretend GPU its
widths cost nothing. One build runs micro-batches of several shapes and chunks of the loss one after
the other, so that formulas need no letters but those of a batch.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from traceback import walk_tb
from typing import NamedTuple

import msgspec

from brimful.cost.own_programs import tells_chunks, traced_adapters, traced_task
from brimful.cost.profiles import (
    OF_ONE,
    PROFILE_SCHEMA,
    TWO_CHUNKS,
    Body,
    Profile,
    Term,
    Variant,
    variant_key,
)
from brimful.cost.programs import HALF, Adapted, Program, capability_of, is_old
from brimful.errors import BrimfulError, UnsupportedError
from brimful.files.traced import all_versions, is_of_these_libraries, source_hash
from brimful.models.traced import BuiltModel
from brimful.pretend.blocks import UnlikeBlocksError
from brimful.pretend.recording import Recording
from brimful.pretend.rounds import UnlikeRoundsError
from brimful.simulate.loop_runs import LoopFitter
from brimful.simulate.one_sequence import changes
from brimful.simulate.own_cases import run_cases
from brimful.simulate.own_fit import Formulas as SizeFormulas
from brimful.simulate.own_fit import NoProductError, OwnFit, TokenShape
from brimful.simulate.own_shapes import (
    ONE_ALONE,
    SEVERAL,
    OwnProgram,
    in_chunks,
    loop_units,
    shapes_of,
    single_of,
    unseen_of,
)
from brimful.simulate.own_stack import kinds_shown, stack_of
from brimful.simulate.run import DEFAULT_CAPABILITY, trace
from brimful.simulate.runs import Blocks, Parts, RunFitter, UnlikeShapesError, cut
from brimful.simulate.tables import Tables
from brimful.simulate.traced import BASES, TURING, fitted_of, marks_of, recipe_of, with_formulas
from brimful.techniques.offload import NOTHING, spell_offload
from brimful.values.job import Adapter, Job, plain_job
from brimful.values.strategy import Strategy, spell_checkpointing

_REASON_LENGTH = 160
_CLASSES = "transformers.models."
_NO_BLOCK = re.compile(r"(?!)")
"""What finds none in a body that is one unit."""

Formulas = dict[TokenShape, SizeFormulas]
"""By the first shape: of a job's sizes, what they are at all shapes."""
Wanted = Mapping[Body, frozenset[int]]
"""What of a program is asked for: numbers of chunks of the loss, by body."""


def with_variants(
    known: Profile | None,
    own: OwnProgram,
    wanted: Wanted,
    formulas: Formulas,
    earlier: Formulas | None = None,
) -> Profile:
    """Trace and fit variants of a program beside those that are known.

    ``known``: what was traced of it before; nothing of it is kept if that was by other versions.
    ``formulas``: that other bodies of the same job told; those of this one are added. ``earlier``:
    that were told of the same job before, for what the profile does not tell. Raises
    UnsupportedError: it is not the same program at all shapes, or a size is no product. Raises
    UnlikeShapesError: it is another program with every length of a sequence, or ends in an error at
    some, and was traced at several. Raises NoProductError: a size is no product of lengths, and it
    was traced at several.
    """
    if known is not None and not is_of_these_libraries(known.versions):
        known = None
    tables = Tables()
    variants = {} if known is None else dict(known.variants)
    if known is not None:
        _tell(formulas, known, own)
        for shape, told in (earlier or {}).items():
            formulas[shape] = told | formulas.get(shape, {})
        tables.kinds.update({kind: place for place, kind in enumerate(known.kinds)})
        tables.works.update({work: place for place, work in enumerate(known.works)})
    for body, chunks in wanted.items():
        missing = [n for n in sorted(chunks) if variant_key(body, num_chunks=n) not in variants]
        if missing:
            before = None if not variants else not any(name.startswith(OF_ONE) for name in variants)
            variants.update(_told(_Traced(own, body, tables, formulas), missing, fits_one=before))
    return Profile(
        schema=PROFILE_SCHEMA,
        key=own.program.key,
        versions=all_versions(),
        source_hash=source_hash(),
        kinds=tuple(tables.kinds),
        works=tuple(tables.works),
        variants=variants,
        sequence=kinds_shown(own),
    )


def _told(
    traced: "_Traced", chunks: Sequence[int], *, fits_one: bool | None
) -> Mapping[str, Variant]:
    """Trace a body, or say in one sentence why it cannot be."""
    name, is_at_own = traced.own.job.model.name, traced.own.built.loops
    refused = f"{name} ({traced.body}) cannot be profiled"
    try:
        return _unrolled_or_whole(traced, chunks, fits_one=fits_one)
    except BrimfulError:
        raise
    except (UnlikeShapesError, NoProductError) as error:
        if is_at_own:
            raise UnsupportedError(f"{refused}: {_told_apart(error)}") from None
        raise
    except Exception as error:  # what classes raise that are run in few of their blocks
        if not is_at_own and _is_of_class(error):  # at the job's own length it may run
            raise UnlikeShapesError(_reason(error)) from error
        raise UnsupportedError(f"{refused}: {_reason(error)}") from error


def _told_apart(error: ValueError) -> str:
    """Say what differs between micro-batches of one length."""
    if isinstance(error, NoProductError):
        return str(error)
    return "other micro-batches run other operations"


def _reason(error: Exception) -> str:
    """Say what hinders a trace: what was found here, or that a class does not run so."""
    told = (str(error).strip() or type(error).__name__).splitlines()[0][:_REASON_LENGTH]
    if not _is_of_class(error):
        return told
    return (
        f"its class ends in an error where few of its blocks run, or at other lengths than the "
        f"job's ({told})"
    )


def _is_of_class(error: Exception) -> bool:
    """Whether an error came out of a class of transformers."""
    through = (str(f.f_globals.get("__name__")) for f, _ in walk_tb(error.__traceback__))
    return any(name.startswith(_CLASSES) for name in through)


def _tell(formulas: Formulas, known: Profile, own: OwnProgram) -> None:
    """Add the formulas of a profile, but for those of a chunk, which may be the last."""
    terms = [kind.terms for kind in known.kinds if kind.terms and _is_whole(kind.terms)]
    for sequences in (SEVERAL, ONE_ALONE):
        with contextlib.suppress(UnsupportedError):  # too few tokens for some of one sequence
            shapes = shapes_of(own, sequences)
            told = formulas.setdefault(_key(shapes), {})
            for each in terms:
                told.setdefault(tuple(shape.num_bytes(each) for shape in shapes), each)


def _key(shapes: Sequence[TokenShape]) -> TokenShape:
    """Return what formulas of some shapes are kept by: the first of them, however it is cut."""
    return shapes[0]._replace(num_chunks=1, chunk=0)


def _is_whole(terms: Iterable[Term]) -> bool:
    return all(term.coefficient > 0 and "C" not in term.factors for term in terms)


class _Traced(NamedTuple):
    """A body to trace.

    Attributes:
        own: The program.
        body: Which blocks are checkpointed.
        tables: Kinds and works so far.
        formulas: That other bodies told.
    """

    own: OwnProgram
    body: Body
    tables: Tables
    formulas: Formulas


def _unrolled_or_whole(
    traced: _Traced, chunks: Sequence[int], *, fits_one: bool | None
) -> Mapping[str, Variant]:
    """Trace a body; where its loops over tokens cannot be told from few, at all of them."""
    if traced.own.grows:
        each = [traced.own._replace(unit=unit) for unit in loop_units(traced.own)]
        each.sort(key=lambda own: _key(shapes_of(own)) not in traced.formulas)  # told another body
        for own in each:
            try:
                return _variants(traced._replace(own=own), chunks, fits_one=fits_one)
            except Exception as error:
                if not (isinstance(error, ValueError) or _is_of_class(error)):
                    raise
    whole = traced.own._replace(is_unrolled=not traced.own.built.loops)
    if traced.own.built.loops:
        chunks = [num for num in chunks if tells_chunks(num, whole.job.seq_len)]
    return _variants(traced._replace(own=whole), chunks, fits_one=fits_one)


def _variants(
    traced: _Traced, chunks: Sequence[int], *, fits_one: bool | None
) -> Mapping[str, Variant]:
    """Trace a body; one sequence at a time apart where it is another program.

    ``fits_one``: whether one sequence runs the same, as another body told; None: nothing did.
    """
    own = traced.own
    several = shapes_of(own)
    if fits_one is None:
        return _undecided(traced, chunks, several)
    of_one: Mapping[str, Variant] = {}
    if fits_one:
        (variants,), _ = _at_shapes(traced, chunks, [several], [], [])
    else:
        programs = [several, shapes_of(own, ONE_ALONE)]
        (variants, of_one), _ = _at_shapes(traced, chunks, programs, [], [])
    return variants | _named_of_one(of_one)


def _named_of_one(variants: Mapping[str, Variant]) -> dict[str, Variant]:
    return {f"{OF_ONE}{name}": each for name, each in variants.items()}


def _undecided(
    traced: _Traced, chunks: Sequence[int], several: Sequence[TokenShape]
) -> dict[str, Variant]:
    """Trace a body of which nobody knows yet whether one sequence runs the same.

    Where it runs another number of operations it is traced in the same build.
    """
    own = traced.own
    single, also = in_chunks(single_of(own), chunks[0]), list[list[TokenShape]]()
    with contextlib.suppress(UnsupportedError):  # too few tokens
        also = _losses(shapes_of(own, ONE_ALONE), chunks)
    more = [case for cases in also for case in cases if case != single]
    unseen = unseen_of(own) if own.grows else None
    beside = [in_chunks(each, chunks[0]) for each in (unseen, single) if each is not None]
    (variants,), trial = _at_shapes(traced, chunks, [several], beside, more)
    told = variants[variant_key(traced.body, num_chunks=chunks[0])]
    if unseen is not None and not trial.holds(told, beside[0]):
        raise UnlikeShapesError("what few tokens tell does not hold for more")
    if trial.holds(told, single):
        return variants
    if trial.is_told(more):
        return variants | _named_of_one(trial.variants(also))
    return variants | _named_of_one(_of_one(traced, chunks, single, trial))


def _of_one(
    traced: _Traced, chunks: Sequence[int], single: TokenShape, trial: "_Trial"
) -> Mapping[str, Variant]:
    """Find the formulas of one sequence, another program, which may have run beside others."""
    losses = _losses(shapes_of(traced.own, ONE_ALONE), chunks)
    if losses == [[single]]:
        return trial.variants(losses)
    return _tried(traced, [losses], [], [])[0][0]


def _at_shapes(
    traced: _Traced,
    chunks: Sequence[int],
    programs: Sequence[Sequence[TokenShape]],
    single: list[TokenShape],
    more: list[TokenShape],
) -> "tuple[list[dict[str, Variant]], _Trial]":
    """Trace a body at few shapes where other bodies told its formulas, else at all of them.

    ``programs``: shapes of several sequences, of one, or both, which are programs of their own.
    ``more``: cases that are run where the last of those runs another number of operations. Returns
    what was found of each program, and what ran.
    """
    if all(traced.formulas.get(_key(shapes)) for shapes in programs):
        with contextlib.suppress(ValueError):
            some = [_losses(shapes[:-1] or shapes, chunks) for shapes in programs]
            return _tried(traced, some, single, more)
    return _tried(traced, [_losses(shapes, chunks) for shapes in programs], single, more)


def _tried(
    traced: _Traced,
    programs: Sequence[list[list[TokenShape]]],
    single: list[TokenShape],
    more: list[TokenShape],
) -> "tuple[list[dict[str, Variant]], _Trial]":
    trial = _Trial(traced, [*chain.from_iterable(programs), *([single] if single else [])], more)
    return [trial.variants(losses) for losses in programs], trial


def _losses(shapes: Sequence[TokenShape], chunks: Sequence[int]) -> list[list[TokenShape]]:
    """List the cases of each number of chunks; one shape alone tells what few of them are."""
    told = [n for n in chunks if n <= TWO_CHUNKS or len(shapes) > 1] or [1]
    return [[in_chunks(shape, n) for shape in shapes] for n in told]


class _Trial:
    """One build of a body that ran some cases."""

    def __init__(
        self,
        traced: _Traced,
        groups: Sequence[Sequence[TokenShape]],
        more: Sequence[TokenShape] = (),
    ) -> None:
        """Run the cases of every group, and more where the last runs other operations."""
        cases, own, body = list(chain.from_iterable(groups)), traced.own, traced.body
        self._groups = groups
        recording = _recorded(own, body, cases, more)
        self._numbers = {case: number for number, case in enumerate([*cases, *more], start=1)}
        ran = ((case.B * case.S, _parts(number)) for case, number in self._numbers.items())
        fitted = fitted_of(recording, {phase: num for num, each in ran for phase in each.values()})
        self._kept, self._marks = with_formulas(recording, fitted), marks_of(recording, fitted)
        stack = stack_of(own, body)
        starts = _starts(own.built, stack.places)
        self._blocks = Blocks(
            stack.num_again, _path_of(starts), kinds_shown(own), starts, stack.numbers
        )
        self._traced, self._tables = traced, traced.tables

    def is_told(self, cases: Sequence[TokenShape]) -> bool:
        """Whether some cases ran, all or none of which do."""
        names = {_parts(self._numbers[case])["forward"] for case in cases}
        return bool(cases) and names <= set(self._kept.phases)

    def variants(self, losses: Sequence[Sequence[TokenShape]]) -> dict[str, Variant]:
        """Find the formulas of every number of chunks; what the first told holds for others.

        Raises ValueError: a size has none, or the program differs between shapes.
        """
        told = self._traced.formulas.setdefault(_key(losses[0]), {})
        found, first = dict[str, Variant](), OwnFit(losses[0], known=told)
        for cases in losses:
            fit = first if cases is losses[0] else OwnFit(cases, known=first.known)
            name = variant_key(self._traced.body, num_chunks=cases[0].num_chunks)
            found[name] = self._variant(cases, fit, self._tables, self._traced.own.job.seq_len)
        if len(losses[0]) == len(SEVERAL):
            told |= first.known
        return found

    def _variant(
        self, cases: Sequence[TokenShape], fit: OwnFit, tables: Tables, seq_len: int
    ) -> Variant:
        """Fit two micro-batches; loops over tokens are written out for so many of them."""
        parts = [_parts(self._numbers[case]) for case in cases]
        if self._traced.own.grows and cases[0].S < cases[-1].S:
            loops = LoopFitter(self._kept, fit, tables, self._blocks, self._marks)
            lengths = [case.S for case in cases]
            first, later = (
                loops.runs(parts, lengths, micro_batch=which, at=seq_len) for which in range(2)
            )
            return Variant(first=first, later=later)
        same = RunFitter([self._kept] * len(cases), fit, tables, self._blocks, self._marks)
        return Variant(first=same.runs(parts, micro_batch=0), later=same.runs(parts, micro_batch=1))

    def holds(self, variant: Variant, case: TokenShape) -> bool:
        """Whether formulas give every event of a case that they were not found by."""
        tables = self._tables
        if self._traced.own.grows:  # there its loops have other rounds
            cases, tables = self._groups[0], Tables(dict(tables.kinds), dict(tables.works))
            known = self._traced.formulas[_key(cases)]
            variant = self._variant(cases, OwnFit(cases, known=known), tables, case.S)
        kinds, works = list(tables.kinds), list(tables.works)
        parts = _parts(self._numbers[case])
        for micro_batch, runs in enumerate((variant.first, variant.later)):
            pieces = cut(self._kept, parts, micro_batch=micro_batch, blocks=self._blocks)
            told = [(run.phase, run.group, run.role) for run in runs]
            if told != [(piece.phase, piece.label[0], piece.role) for piece in pieces]:
                return False
            for run, piece in zip(runs, pieces, strict=True):
                events = [kinds[event] for event in works[run.work].events]
                sizes = [case.num_bytes(kind.terms) for kind in events if not kind.mark]
                if sizes != changes(self._kept, piece):
                    return False
        return True


def _starts(built: BuiltModel, places: Sequence[int]) -> dict[str, int]:
    """Return the lists that blocks stand in, each with how many are traced before its first."""
    stacks = [run.prefix for run in built.layout.blocks for _ in range(run.num_blocks)]
    traced = [stacks[place] for place in places]
    return {stack: traced.index(stack) for stack in dict.fromkeys(stacks)}


def _path_of(stacks: Iterable[str]) -> re.Pattern[str]:
    """Return what finds a block in the path of a module."""
    if not (every := "|".join(map(re.escape, stacks))):
        return _NO_BLOCK
    return re.compile(rf"(?:^|\.)(?P<stack>{every})\.(?P<number>\d+)(?:\.|$)")


def _parts(number: int) -> Parts:
    return {"forward": f"step {number} forward", "backward": f"step {number} backward"}


def _recorded(
    own: OwnProgram, body: Body, cases: Sequence[TokenShape], more: Sequence[TokenShape] = ()
) -> Recording:
    """Run micro-batches of every case by one build, and return its tape; see ``run_cases``."""
    program, (places, num_again, num_sent, num_brought, _) = own.program, stack_of(own, body)
    longest = max(case.S for case in (*cases, *more))
    num_blocks = len(places) or own.job.model.num_layers
    job = _traced_job(own, num_blocks=num_blocks, seq_len=longest)
    away = NOTHING._replace(activations=num_sent, parameters=num_brought, frozen=num_brought > 0)
    strategy = Strategy(
        micro_batch=max(case.B for case in cases),
        activation_checkpointing=spell_checkpointing(
            num_again, num_layers=num_blocks, recompute=program.recompute
        ),
        loss_chunks=1,
        attention=program.attention,
        fused_kernels=own.fused,
        offload=spell_offload(away, num_layers=num_blocks),
    )
    may_loop, on_silent = not own.built.loops, own.on_silent
    then = partial(run_cases, cases=cases, more=more, may_loop=may_loop, on_silent=on_silent)
    traced = partial(
        trace, job, strategy, imitate="cpu" if program.kernels == "cpu" else "cuda",
        capability=_capability(program),
        count_costs=True, num_steps=0, then=(then,),
        narrowed_from=own.job.precision if own.gathers and own.job.precision in HALF else None,
        arranged=places, parted=own.ep, on_op=own.on_op,
    )  # fmt: skip
    repeats = not (num_sent or num_brought)  # which see no hooks of what is saved
    try:
        return traced(repeats=repeats, leaves_out=own.built.loops).recording
    except UnlikeRoundsError:
        return traced(repeats=False).recording
    except UnlikeBlocksError:
        return traced().recording


def _capability(program: Program) -> float:
    usual = TURING if is_old(program.kernels) else DEFAULT_CAPABILITY
    return capability_of(program.kernels) or usual


def _traced_job(own: OwnProgram, *, num_blocks: int, seq_len: int) -> Job:
    """Return the job that is traced: the same program in few blocks."""
    adapted = traced_adapters(own.job, gathers=own.gathers)
    return plain_job(
        msgspec.structs.replace(own.job.model, num_layers=num_blocks),
        task=traced_task(own.job.task),
        method=own.job.method,
        adapter=None if adapted is None else _adapter(own.job, adapted),
        precision=recipe_of(own.program),
        packing=own.job.packing,
        seq_len=seq_len,
        global_batch=2 * max(SEVERAL),
        num_steps=2,
        learning_rate=1e-3,
        dropout=own.job.dropout,
    )


def _adapter(job: Job, adapted: Adapted) -> Adapter:
    assert job.adapter is not None
    return msgspec.structs.replace(
        job.adapter,
        dtype="fp32" if adapted.is_wide else "same",
        base=BASES[adapted.base],
        upcast=adapted.upcast,
    )
