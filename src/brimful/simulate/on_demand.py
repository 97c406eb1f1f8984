"""Profiles on demand: what a job needs that does not ship is traced once and kept.

Shared by whoever predicts; what is asked for decides what is traced.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from brimful.build.layout import read_built
from brimful.cost.family import bodies_of
from brimful.cost.own_programs import Need, chosen_program, missing_needs, refusal_of
from brimful.cost.profiles import Body, has_profile, keep_profile, load_profile
from brimful.cost.programs import Kernels, runs_packages
from brimful.cost.sending import NONE_SENDS
from brimful.errors import UnsupportedError
from brimful.files.traced import keep_traced, read_traced
from brimful.models.layout import without_gradients
from brimful.models.traced import BuiltModel, as_run, keep_built, looping
from brimful.simulate.own_fit import NoProductError
from brimful.simulate.own_profile import Formulas, with_variants
from brimful.simulate.own_shapes import OwnProgram
from brimful.simulate.runs import UnlikeShapesError
from brimful.simulate.token_loops import TokenLoopError
from brimful.values.job import Job
from brimful.values.strategy import Attention

_TOLD_EVERY_S = 0.5


class Tracing(NamedTuple):
    """How far tracing is.

    Attributes:
        num_done: Bodies that were traced and kept.
        num_bodies: That there are.
        what: The one that is traced now.
        spent_s: Seconds so far.
    """

    num_done: int
    num_bodies: int
    what: str
    spent_s: float

    @property
    def share(self) -> float:
        """What is done of all, by number of bodies."""
        return self.num_done / max(1, self.num_bodies)


class _Asked(NamedTuple):
    """What formulas of sizes are told of.

    Attributes:
        job: What is trained.
        attention: How the model attends.
        kernels: Whose kernels run.
        built: What its model is; whether it loops over tokens decides at which of them it is run.
    """

    job: Job
    attention: Attention
    kernels: Kernels
    built: BuiltModel


class _Latest:
    """What was asked last, for the whole process.

    A profile that is kept has the sizes of tensors, and of what operations move sums alone.
    """

    asked: _Asked | None = None
    formulas: Formulas = {}  # noqa: RUF012 - the one place where it is kept


def trace_needs(  # noqa: PLR0913 - what is needed, and who is told and asked
    job: Job,
    attention: Attention,
    kernels: Kernels,
    needs: Sequence[Need],
    *,
    watch: Callable[[Tracing], None],
    is_over: Callable[[float], bool] = lambda _: False,
) -> None:
    """Trace what is needed and was not traced before; each body is kept as soon as it is known.

    ``needs``: in the order in which their programs are traced. ``watch``: told how far it is, every
    half second or so. ``is_over``: asked before each but the first whether no more are
    traced, told what the longest took.
    Raises UnsupportedError: no formula gives what the job allocates. Where experts need not be
    parted, they are not then.
    """
    packaged = runs_packages(job.model, kernels)
    known = read_built(job, attention)
    built = as_run(known, packaged=packaged)
    missing = missing_needs(job, attention, kernels, needs)
    if not built.kinds:  # a body that is one unit, which nobody knew who asked
        whole = bodies_of(job)
        missing = [need for need in missing if need.body in whole and need.recompute == "full"]
    silent = dict[str, int]()
    watched = _Watched(len(_by_variant(missing, needs)), watch)
    formulas = Formulas()
    earlier = _told_of(_Asked(job, attention, kernels, built))
    for each, chunks in _by_variant(missing, needs).items():
        if watched.num_done and is_over(watched.longest_s):
            break
        gathers, recompute, body, _, sending, ep = each
        is_beside = ep > 1 and any(need.ep == 1 for need in needs)
        program = chosen_program(
            job, attention, kernels, recompute,
            gathers=gathers, ep=ep, sending=sending, is_exact=True,
        )  # fmt: skip
        own = OwnProgram(
            program, job, built, gathers, ep, sending, watched.on_op, on_silent=silent.update
        )
        try:
            _check_refused(program.key, job.seq_len)
            watched.begin(_named(own, body))
            before = load_profile(program.key) if has_profile(program.key) else None
            keep_profile(with_variants(before, own, {body: chunks}, formulas, earlier))
            earlier |= formulas
            watched.end()
        except (UnlikeShapesError, NoProductError) as error:
            by_token = isinstance(error, TokenLoopError)
            keep_built(job.model, looping(known, packaged=packaged, by_token=by_token))
            try:
                trace_needs(job, attention, kernels, needs, watch=watch, is_over=is_over)
            except UnsupportedError as refused:
                if error.__cause__ is not None:  # a class that ends in an error there too
                    keep_built(job.model, known)
                    keep_traced(refusal_of(program.key, job.seq_len), str(refused))
                raise
            return
        except UnsupportedError as error:
            keep_traced(refusal_of(program.key), str(error))
            if not is_beside:
                raise
    _keep_silent(job, known, silent)


def _by_variant(missing: Sequence[Need], needs: Sequence[Need]) -> dict[Need, frozenset[int]]:
    """Return numbers of chunks of needs that are one but for these, in the order asked for."""
    found: dict[Need, frozenset[int]] = {}
    for need in sorted(missing, key=needs.index):
        one = need._replace(num_chunks=1)
        found[one] = found.get(one, frozenset()) | {need.num_chunks}
    return found


def _keep_silent(job: Job, built: BuiltModel, silent: Mapping[str, int]) -> None:
    """Keep what no gradient comes to, of parameters or of adapters, if a trace showed some."""
    beside = job.adapter is not None
    told = without_gradients(built.layout, silent, beside=beside) if silent else built.layout
    if told != built.layout:
        keep_built(job.model, msgspec.structs.replace(built, layout=told))


def _told_of(asked: _Asked) -> Formulas:
    """Return what was told of sizes, as by the search before that asked for less of the same."""
    if _Latest.asked != asked:
        _Latest.asked, _Latest.formulas = asked, Formulas()
    return _Latest.formulas


def _named(own: OwnProgram, body: Body) -> str:
    """Say which blocks a body has."""
    how = "selectively " if own.program.recompute != "full" and body != "plain" else ""
    gathered = ", gathered" if own.gathers else ""
    sent = ", offloading" if own.sending != NONE_SENDS else ""
    parted = f", ep {own.ep}" if own.ep > 1 else ""
    return f"{how}{body}{gathered}{parted}{sent}"


class _Watched:
    """Tells how far tracing is."""

    def __init__(self, num_bodies: int, watch: Callable[[Tracing], None]) -> None:
        self._num_bodies, self._watch = num_bodies, watch
        self._start_s = self._told_s = time.monotonic()
        self.num_done, self._what = 0, ""
        self.longest_s, self._began_s = 0.0, self._start_s

    def begin(self, what: str) -> None:
        """Begin a body."""
        self._what, self._began_s = what, time.monotonic()
        self._tell(self._began_s)

    def on_op(self) -> None:
        """Take note of an operation, of which there are tens of thousands."""
        now_s = time.monotonic()
        if now_s - self._told_s >= _TOLD_EVERY_S:
            self._tell(now_s)

    def end(self) -> None:
        """End a body, which is kept."""
        now_s = time.monotonic()
        self.longest_s = max(self.longest_s, now_s - self._began_s)
        self.num_done += 1
        self._tell(now_s)

    def _tell(self, now_s: float) -> None:
        self._told_s = now_s
        spent_s = now_s - self._start_s
        self._watch(Tracing(self.num_done, self._num_bodies, self._what, spent_s))


def _check_refused(key: str, seq_len: int) -> None:
    """Refuse at once what was traced before, and had no formula, be it at this length alone."""
    for name in (refusal_of(key), refusal_of(key, seq_len)):
        if (refused := read_traced(name, str)) is not None:
            raise UnsupportedError(refused)
