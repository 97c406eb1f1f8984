"""What the stages of a pipeline send each other, where one process of it is pretended.

Gradients that come back are like what was sent. What comes in is said by whoever makes the stage,
or is what the stage before sends: the program is run as that stage's process up to there.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineSchedule

from brimful.errors import InputError
from brimful.pretend.replacing import replaced

_VOTE = "_warmup_p2p"


class _Asked(NamedTuple):
    """Who knows what comes into a stage: the stage before it, and the process that has that."""

    stage: int
    rank: int


class _SentError(BaseException):
    """Ends a program in which a stage has sent what was asked; none catches it for its own."""


class _Shapes:
    """What stages send.

    Attributes:
        known: By stage.
        asked: Of what is not known; None: nothing was asked for.
        wanted: The stage that ends a program once it has sent; None: none does.
    """

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}
        self.asked: _Asked | None = None
        self.wanted: int | None = None

    def sends(self, stage: int, sent: Any) -> None:
        """Note what a stage sends."""
        self.known[stage] = sent
        if stage == self.wanted:
            raise _SentError

    def learn(self, run_as: Callable[[int], None]) -> bool:
        """Find out what was asked for; return whether it is known then."""
        asked = self.asked
        if asked is None:
            return False
        while asked.stage not in self.known:
            self.asked, self.wanted = None, asked.stage
            run_as(asked.rank)
            self.wanted = None
            if asked.stage not in self.known and not self.learn(run_as):
                return False
        return True


_shapes: list[_Shapes] = []
"""Of the program that runs, where somebody may run it as other processes."""


def asking_neighbours(
    run: Callable[[], BaseException | None], run_as: Callable[[int], None]
) -> BaseException | None:
    """Run a program, and as other processes of it where one of its stages asks another.

    ``run``: runs it, and returns what ended it. ``run_as``: runs it as another rank, until it ends.
    """
    shapes = _Shapes()
    _shapes.append(shapes)
    try:
        ended = run()
        while shapes.learn(run_as):
            shapes.asked = None
            ended = run()
        return ended
    finally:
        _shapes.remove(shapes)


@contextlib.contextmanager
def shapes_as_said() -> Iterator[None]:
    """Let the stages of a pipeline take shapes as they were given, without asking the others.

    Since torch 2.12 they vote on it: a number is sent along the row and back, and read. Where
    shapes were not given each stage tells the next what it sends.
    """
    if not hasattr(_PipelineSchedule, _VOTE):
        yield
        return
    with replaced(
        (
            (_PipelineSchedule, _VOTE, _agree),
            (PipelineStage, "_send_meta", _tell),
            (PipelineStage, "_recv_meta", _told),
        )
    ):
        yield


def _agree(_schedule: Any, stages: list[Any], has_backward: bool, *_: Any, **__: Any) -> None:  # noqa: FBT001 - as torch calls it
    """Take each stage's own vote."""
    from torch.distributed.pipelining import stage as there
    from torch.distributed.pipelining._utils import InferenceMode

    for stage in stages:
        asks = InferenceMode.needs_dynamic(stage._user_meta, has_backward)  # noqa: SLF001
        stage._inference_mode = InferenceMode.DYNAMIC if asks else InferenceMode.STATIC  # noqa: SLF001
        if not asks and _shapes:
            outputs = stage._user_meta.outputs  # noqa: SLF001
            _shapes[-1].sends(stage.stage_index, there._StageForwardMeta(forward_metas=outputs))  # noqa: SLF001


def _tell(stage: Any, sent: Any, to: int) -> None:
    """Tell a neighbour of what is sent; what goes back it knows."""
    if to > stage.stage_index and _shapes:
        _shapes[-1].sends(stage.stage_index, sent)


def _told(stage: Any, source: int) -> Any:
    """Return what a neighbour tells of what it sends."""
    from torch.distributed.pipelining import stage as stages

    there: Any = stages
    if source > stage.stage_index:
        gradients = there._derive_grad_metas(stage._stage_meta.outputs)  # noqa: SLF001
        return there._StageBackwardMeta(backward_metas=gradients)  # noqa: SLF001
    if stage._user_meta.inputs is not None:  # noqa: SLF001
        return there._StageForwardMeta(forward_metas=stage._user_meta.inputs)  # noqa: SLF001
    shapes = _shapes[-1] if _shapes else _Shapes()
    if source not in shapes.known:
        shapes.asked = _Asked(source, stage._resolve_peer_global_rank(source))  # noqa: SLF001
        raise InputError(
            f"stage {stage.stage_index} of the pipeline asks stage {source} what comes in, and "
            f"that does not run here; give PipelineStage(..., input_args=...) a tensor like it on "
            f"the meta device"
        )
    return shapes.known[source]
