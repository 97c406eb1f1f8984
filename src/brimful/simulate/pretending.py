"""The pretend GPU that simulations run on, and what ends them there."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from traceback import walk_tb
from typing import Any, ParamSpec, TypeVar

from torch.nn import Module

from brimful.build.parallel.routing import assumed
from brimful.hardware.cuda_chips import version_of
from brimful.pretend import device, kernels
from brimful.pretend.cuda_mode import compiling, launching
from brimful.pretend.fake_mode import FakeMode
from brimful.pretend.known_values import knowing
from brimful.pretend.moving import modules_move
from brimful.pretend.random_state import states_counted
from brimful.pretend.real_values import UnknownValueError
from brimful.pretend.recurrent_cudnn import flattening
from brimful.pretend.replacing import replaced
from brimful.pretend.tape import Tape
from brimful.simulate.layer_kernels import in_classes
from brimful.techniques.fused_kernels import LIGER_FUNCTIONS, LIGER_LOSS
from brimful.techniques.kernel_support import Place
from brimful.techniques.parallel.routing import Replay, Routing
from brimful.values.strategy import Strategy, compiles

_CLASSES = "transformers.models."
_Asked = ParamSpec("_Asked")
_Found = TypeVar("_Found")


def with_values_where_asked(run: Callable[_Asked, _Found]) -> Callable[_Asked, _Found]:
    """Let what ends in an error that hangs on a value run once more, where values are known.

    They cost time that few classes need: who asks whether its numbers are finite, or takes rows by
    a mask that is the same in each of them.

    ``run``: takes ``knows``: whether they are.
    """

    @wraps(run)
    def run_again(*args: _Asked.args, **how: _Asked.kwargs) -> _Found:
        try:
            return run(*args, **how)
        except Exception as error:
            if how.get("knows") or not (isinstance(error, UnknownValueError) or _is_own(error)):
                raise
        return run(*args, **{**how, "knows": True})  # type: ignore[arg-type]  # a keyword more

    return run_again


def _is_own(error: Exception) -> bool:
    """Whether code of a class of transformers raised an error, and nothing that it called."""
    *_, (last, _) = walk_tb(error.__traceback__)
    return str(last.f_globals.get("__name__")).startswith(_CLASSES)


@contextmanager
def pretending(  # noqa: PLR0913, PLR0917 - what a GPU is, and what is heard of it
    tape: Tape,
    place: Place,
    world: AbstractContextManager[None],
    routing: Routing,
    strategy: Strategy,
    model: Module,
    *,
    knows: bool,
) -> Iterator[None]:
    """Be on the pretend GPU inside the block, in a world, with a tape that hears all.

    ``model``: whose layers may run what packages have. ``knows``: whether integers that are known
    are kept beside the tensors.
    """
    how = {"capability": version_of(place.capability)} if place.kernels == "cuda" else {}
    imitation = kernels.imitate(place.kernels, **how)
    fake_mode = FakeMode(allow_non_fake_inputs=True)
    fuses = strategy.fused_kernels == "liger"
    fused = launching(LIGER_FUNCTIONS, _launched(tape)) if fuses else nullcontext()
    with (
        device.there(), imitation, world, assumed(Replay(routing)), flattening(),
        fake_mode as fake, modules_move(fake), states_counted(),
        knowing() if knows else nullcontext(), tape,
        compiler_of(tape, strategy), fused, _layers_of(tape, place, model, strategy),
    ):  # fmt: skip
        yield


def _layers_of(
    tape: Tape, place: Place, model: Module, strategy: Strategy
) -> AbstractContextManager[Any]:
    """Return what lets layers of a model run what packages have for them, or their class's code.

    On a CPU a class runs what it finds on this machine.
    """
    if place.kernels == "cpu":
        return nullcontext()
    packaged = strategy.fused_kernels != "torch"
    return replaced(list(in_classes(model, tape.launched if packaged else None)))


def compiler_of(tape: Tape, strategy: Strategy) -> AbstractContextManager[Any]:
    """Return what compiles inside a simulation."""
    if not compiles(strategy):
        return nullcontext()
    return compiling(type(tape), tape.assumptions, tape.attended)


def _launched(tape: Tape) -> Callable[[str, Mapping[str, Any], int], None]:
    """Tell the tape of kernels beside PyTorch's, and where a chunk of the loss is."""

    def launch(name: str, arguments: Mapping[str, Any], num_flops: int) -> None:
        tape.launched(name, arguments, num_flops)
        if name == LIGER_LOSS:
            tape.mark()

    return launch


@contextmanager
def ended_as_asked(tape: Tape) -> Iterator[None]:
    """Let what ended a tape be what is raised, whatever libraries on the way made of it.

    ``Module._apply`` of torch tells every error that a parameter could not be swapped.
    """
    try:
        yield
    except Exception as error:
        if tape.ended_by is None or tape.ended_by is error:
            raise
        raise tape.ended_by from error
