"""At which shapes a program of one's own is traced, so that its formulas are told apart."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from brimful.cost.own_programs import ROUNDED_TOKENS
from brimful.cost.profiles import NUM_CHUNKS
from brimful.cost.programs import WITHOUT_PACKAGES, Program, capability_of
from brimful.cost.sending import NONE_SENDS, Sending
from brimful.errors import UnsupportedError
from brimful.models.traced import BuiltModel
from brimful.pretend.tape import go_on
from brimful.simulate.own_fit import TokenShape
from brimful.techniques.fused_kernels import (
    FusedKernels,
    Head,
    budget_for,
    chunk_tokens,
    fused_head,
)
from brimful.values.job import Job

SEVERAL, ONE_ALONE = (5, 6, 4), (1, 1, 1)
"""Sequences of three shapes: several, and one, which may be another program. What the first body of
a job tells holds for later ones at the first two, which tell a product that it has not."""
_LENGTHS = (3, 7, 4, 2, 9, 5, 6, 8, 1)
"""Multiples of the tokens that kernels round to, likely ones first. Five chunks are of one size at
the first shape, by which members of a group are compared, and not at the others, where a fifth is
told from a chunk."""
_LOOPED = (2, 3, 4, 5, 6)
"""Likewise where a program loops over tokens: at the fewest the rounds of a loop are several, and
of the others two are taken at which a fifth is told from a chunk."""
_FEW = 8
"""Tokens whose multiples those are where a loop is over single ones, and kernels round nothing."""
_MOST_FUSED = 40
"""Lengths that are looked at for a fused loss: some of them make the chunks that are traced."""
_ROUNDINGS = (ROUNDED_TOKENS, 128, 32, 8, 1)


class OwnProgram(NamedTuple):
    """A program to trace.

    Attributes:
        program: Its name.
        job: That runs it.
        built: What its model is.
        gathers: Whether parameters are gathered before they compute.
        ep: Devices that part the experts of a block among them.
        sending: Which blocks send to the host what they keep.
        on_op: Called before every operation.
        is_unrolled: Whether loops over tokens, if it has any, are told from fewer tokens.
        unit: Tokens that these are multiples of.
        on_silent: Told what no gradient comes to (``own_cases.py``).
    """

    program: Program
    job: Job
    built: BuiltModel
    gathers: bool
    ep: int = 1
    sending: Sending = NONE_SENDS
    on_op: Callable[[], None] = go_on
    is_unrolled: bool = True
    unit: int = ROUNDED_TOKENS
    on_silent: Callable[[dict[str, int]], object] = dict

    @property
    def grows(self) -> bool:
        """Whether it is traced at fewer tokens than its loops run over."""
        return self.built.loops and self.is_unrolled

    @property
    def fused(self) -> FusedKernels:
        """Whose kernels run beside products and attention."""
        if capability_of(self.program.kernels) is not None:
            return "liger"
        return "torch" if self.program.kernels in WITHOUT_PACKAGES.values() else "none"


def shapes_of(own: OwnProgram, sequences: Sequence[int] = SEVERAL) -> list[TokenShape]:
    """Return the shapes to trace: on the same side of windows as the job's own sequences.

    What kernels round tokens up to leaves of them what it leaves of the job's own.
    """
    seq_len = own.job.seq_len
    if own.built.loops and not own.is_unrolled:
        return [TokenShape(num, seq_len) for num in dict.fromkeys(sequences)]
    least = max((window for window in own.built.windows if window < seq_len), default=0)
    most = _longest(own)
    if own.grows:
        start = least // own.unit * own.unit + seq_len % own.unit
        first, *rest = (start + length * own.unit for length in _LOOPED)
        looped = [first, *[n for n in rest if n % NUM_CHUNKS][:2]]
        if looped[-1] > min(most, seq_len):
            return shapes_of(own._replace(is_unrolled=False), sequences)
        return [TokenShape(num, n) for num, n in zip(sequences, looped, strict=True)]
    head = fused_head(own.job, own.fused)
    if head is not None and head.rows > head.columns:
        return _fused_shapes(own, head, sequences, range(least + 1, most + 1))
    for unit in _ROUNDINGS:
        start = least // unit * unit + seq_len % unit
        every = [start + length * unit for length in _LENGTHS]
        fitting = [length for length in every if least < length <= most]
        firsts = [n for n in fitting if sequences[0] * n % NUM_CHUNKS == 0]
        others = [n for n in fitting if n % NUM_CHUNKS and n not in firsts[:1]]
        if firsts and len(others) > 1:
            lengths = (firsts[0], *others[:2])
            return [TokenShape(num, n) for num, n in zip(sequences, lengths, strict=True)]
    raise UnsupportedError(f"{own.job.model.name} has too few tokens to be profiled")


def loop_units(own: OwnProgram) -> tuple[int, ...]:
    """Return tokens whose multiples may tell a program's loops, those that take least first."""
    return (_FEW, ROUNDED_TOKENS) if own.built.by_token else (ROUNDED_TOKENS,)


def unseen_of(own: OwnProgram) -> TokenShape | None:
    """Return a shape at which what few tokens told has to hold; None: there is none.

    Kernels round its tokens as they round the job's own, which those few do not tell.
    """
    several = shapes_of(own)
    if own.unit == ROUNDED_TOKENS or several[0].S == several[-1].S:
        return None
    rest = own.job.seq_len % ROUNDED_TOKENS
    more = -(-(several[-1].S + 1 - rest) // ROUNDED_TOKENS) * ROUNDED_TOKENS + rest
    return TokenShape(min(SEVERAL), more) if more <= min(_longest(own), own.job.seq_len) else None


def _longest(own: OwnProgram) -> int:
    """Return the length of the longest sequence on the job's own side of windows."""
    windows = (window for window in own.built.windows if window >= own.job.seq_len)
    return min((own.job.model.max_seq_len, *windows))


def _fused_shapes(
    own: OwnProgram, head: Head, sequences: Sequence[int], within: range
) -> list[TokenShape]:
    """Return shapes whose fused loss runs in as many chunks as are traced.

    They are of one size at the first shape. They are powers of two, so that few numbers of tokens
    make five; under which budget they do is found for each (``budget_for``).
    """
    seq_len = own.job.seq_len
    for unit in _ROUNDINGS:
        start = (within.start - 1) // unit * unit + seq_len % unit
        lengths = [n for n in range(start, start + _MOST_FUSED * unit, unit) if n in within]
        every = [
            [shape for n in lengths if (shape := _fused_shape(num, n, head)) is not None]
            for num in sequences
        ]
        first = next((s for s in every[0] if s.chunk == s.last_tokens), None)
        second = next((s for s in every[1] if _is_apart(s, [first])), None)
        third = next((s for s in every[2] if _is_apart(s, [first, second])), None)
        if first is not None and second is not None and third is not None:
            return [first, second, third]
    raise UnsupportedError(
        f"{own.job.model.name} runs its fused loss in so few chunks that it cannot be profiled"
    )


def _fused_shape(sequences: int, length: int, head: Head) -> TokenShape | None:
    """Return a shape whose fused loss may run in as many chunks as are traced; None: it may not."""
    tokens = sequences * length
    budget = budget_for(tokens, head, num_chunks=NUM_CHUNKS)
    if budget is None:
        return None
    return TokenShape(sequences, length, NUM_CHUNKS, chunk_tokens(tokens, head, budget=budget))


def _is_apart(shape: TokenShape, others: Sequence[TokenShape | None]) -> bool:
    """Whether a shape is of another length than some, and its last chunk is smaller."""
    lengths = {other.S for other in others if other is not None}
    return shape.S not in lengths and shape.chunk != shape.last_tokens


def single_of(own: OwnProgram) -> TokenShape:
    """Return one sequence: the longest of a model in which there are no three lengths for one."""
    try:
        return shapes_of(own, ONE_ALONE)[0]
    except UnsupportedError:
        return TokenShape(1, own.job.model.max_seq_len)


def in_chunks(shape: TokenShape, num_chunks: int) -> TokenShape:
    """Return a shape whose loss runs in so many chunks."""
    if shape.chunk and shape.num_chunks != num_chunks:
        raise UnsupportedError(
            f"a fused loss in {num_chunks} chunks cannot be profiled, as it chooses their number"
        )
    return shape._replace(num_chunks=num_chunks)
