"""``pretend.gpu``: the block in which a GPU exists that does not.

Puts the parts together in the one order that works: the device, the card it pretends to be, a
process group of any size, the fake mode, the tape, and the phases of a loop nobody announces.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Self

import msgspec
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from brimful.allocator.config import parse_settings
from brimful.errors import InputError
from brimful.hardware.cluster import Device
from brimful.hardware.cuda_chips import chips, version_of
from brimful.hardware.gpus import device_named
from brimful.pretend import device, kernels, subclasses
from brimful.pretend.already import already_done
from brimful.pretend.between_steps import with_passes
from brimful.pretend.cuda_calls import CUDA
from brimful.pretend.cuda_mode import saying_cuda
from brimful.pretend.device import NAME, Card
from brimful.pretend.fake_groups import groups_of_one_process
from brimful.pretend.fake_mode import FakeMode
from brimful.pretend.fake_world import World, pretend_world
from brimful.pretend.idle_gradients import Trained
from brimful.pretend.known_values import knowing
from brimful.pretend.logits import with_logits
from brimful.pretend.models_at_peak import models_at_peak
from brimful.pretend.moving import modules_move
from brimful.pretend.not_updated import not_updated, with_copies
from brimful.pretend.optimizers import picking_as
from brimful.pretend.other_kernels import OtherKernels
from brimful.pretend.reading import classify
from brimful.pretend.recording import Recording
from brimful.pretend.recurrent_cudnn import flattening
from brimful.pretend.remedies import Mended, mended
from brimful.pretend.replacing import replaced
from brimful.pretend.report import read_report
from brimful.pretend.report_values import PretendReport, StepTime
from brimful.pretend.stand_in_packages import check_stand_ins, noted
from brimful.pretend.step_time import TimedTape, step_time
from brimful.pretend.step_values import Cut, fits_all
from brimful.pretend.steps import following
from brimful.pretend.tape import Tape
from brimful.pretend.unit_values import WholeUnit
from brimful.pretend.unused_graphs import Unused, unused_of
from brimful.values.results import WHOLE_GRADIENTS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from brimful.pretend.script_lines import ScriptLine
    from brimful.pretend.sharding_units import Unit
    from brimful.pretend.whole_gradients import Held


_PART = "at least, until its time was over: "
"""Before what is said of a program of which not even two steps ran."""


class Run(contextlib.ContextDecorator):
    """A program's run on a pretend GPU; see ``gpu``.

    Every time that the block is entered, or the decorated function called, the GPU is empty: no
    tensor of an earlier time is on it. What the handle says is of the last time; the peaks of
    earlier ones stay in ``peaks_allocated_bytes``.

    Attributes:
        cut: Where the program was ended before its own end; None: it was not.
        known_event: Of the recording, by which two whole steps are over; None: not looked for.
    """

    def __init__(  # noqa: PLR0913 - what may be said of a GPU
        self,
        card: Card,
        imitate: kernels.Kernels,
        world: World | None,
        new_tape: Callable[[], TimedTape],
        *,
        device_spec: Device,
        says_cuda: bool,
        assumed: Collection[str],
        weights_dtype: str,
    ) -> None:
        """Keep what the block shall be; ``gpu`` makes the parts."""
        self.says_cuda = says_cuda
        self.assumed = assumed
        self.weights_dtype = weights_dtype
        self.other_kernels = OtherKernels()
        self.card = card
        self._device = device_spec
        self.kernels = imitate
        self.world = world
        self.tape = new_tape()
        self.cut: Cut | None = None
        self.known_event: int | None = None
        self._trained = Trained()
        self._places: list[ScriptLine] = []
        self._units: list[Unit] = []
        self._held: Held | None = None
        self._new_tape = new_tape
        self._was_entered = False
        self._earlier_peaks: list[int] = []

    def as_rank(self, rank: int) -> "Run":
        """Return the GPU of another process of the same world; nothing has run on it."""
        return Run(
            self.card,
            self.kernels,
            _world(None if self.world is None else self.world.size, rank),
            self._new_tape,
            device_spec=self._device,
            says_cuda=self.says_cuda,
            assumed=self.assumed,
            weights_dtype=self.weights_dtype,
        )

    def __enter__(self) -> Self:
        """Make the GPU exist."""
        if self._was_entered:
            self._earlier_peaks.append(self.peak_allocated_bytes)
            self.tape, self.other_kernels = self._new_tape(), OtherKernels()
            self._trained, self._places, self._units = Trained(), [], []
            self._held = None
        self._was_entered, self.cut, self.known_event = True, None, None
        with contextlib.ExitStack() as stack:
            stack.enter_context(device.pretending(self.card))
            stack.enter_context(kernels.imitate(self.kernels, capability=self.card.capability))
            if self.world is not None:
                stack.enter_context(pretend_world(self.world, self.tape.paused))
                stack.enter_context(groups_of_one_process(self.world, self.tape.assumptions))
                self._held = stack.enter_context(_gathering(self.tape, self._units, self._trained))
            fake = stack.enter_context(FakeMode(allow_non_fake_inputs=True))
            stack.enter_context(modules_move(fake))
            stack.enter_context(replaced(subclasses.replacements()))
            stack.enter_context(picking_as(self.kernels))
            stack.enter_context(flattening())
            self.known = known = stack.enter_context(knowing())
            stack.enter_context(self.tape)
            stack.enter_context(following(self.tape, self._trained, self._places))
            if self.says_cuda:
                noted = self.tape.assumptions
                cuda = saying_cuda(
                    known,
                    self.other_kernels,
                    self.assumed,
                    noted,
                    weights_dtype=self.weights_dtype,
                )
                stack.enter_context(cuda)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        """Make it vanish; a run that put nothing on the GPU fails.

        Raises:
            InputError: No byte was ever allocated on the pretend GPU.
        """
        self._stack.__exit__(*exc)  # type: ignore[arg-type]
        if exc[0] is None and not self.tape.num_allocations():
            place = CUDA if self.says_cuda else f"{NAME}:0"
            raise InputError(f"0 bytes were allocated on the pretend GPU; put the model on {place}")

    def recording(self, device_name: str = "") -> Recording:
        """Return what was recorded of a device.

        Args:
            device_name: ``gpu:0``, ``cpu`` for the host, ...; empty for the pretend GPU.
        """
        return self.tape.finish(device_name)

    @property
    def peak_allocated_bytes(self) -> int:
        """The most that was alive on the GPU at once, the last time that the block was entered."""
        live = self.recording().live_bytes()
        return int(live.max(initial=0))

    @property
    def peaks_allocated_bytes(self) -> tuple[int, ...]:
        """The same of every time, or call of a decorated function, in order; the last ends it."""
        return (*self._earlier_peaks, *([self.peak_allocated_bytes] * self._was_entered))

    def report(self, *, allocator: str = "", budget_bytes: int | None = None) -> PretendReport:
        """Sum up the run: the peak, whose it is, and whether it fits the card.

        Args:
            allocator: Settings as ``PYTORCH_CUDA_ALLOC_CONF`` spells them; empty: the defaults.
            budget_bytes: What the allocator may take at most; None: all that the card leaves it.

        Raises:
            InputError: A setting that the replay does not follow, or a budget of nothing.
        """
        trained = self._trained
        recording = with_copies(self.recording(), trained.updated_rows)
        settings = parse_settings(allocator)
        told = read_report(
            recording,
            self.recording("cpu"),
            card=self.card,
            settings=settings,
            budget_bytes=budget_bytes,
            assumptions=self.tape.assumptions,
            unknown_ops=self.tape.unknown_ops,
            bounded=self.tape.bounded,
            beside_torch=noted(self.other_kernels),
            idle_gradients=trained.idle(),
            places=self._places,
        )
        item, unused = self._unused(recording, told.peak_event)
        told = with_passes(told, recording, unused, settings=settings, places=self._places)
        without = mended(recording, item, unused.every, trained)
        full_in = None if told.grows is None else told.grows.num_more
        fits = fits_all(self.cut, full_in, fits=told.fits)
        time = self._step_time(recording)
        return msgspec.structs.replace(
            told,
            cut=self.cut,
            fits=fits,
            without=without and without.told(settings, told.at_capacity.capacity_bytes),
            statement=f"{_PART}{told.statement}" if fits is None else told.statement,
            whole_gradients=None
            if self._held is None
            else self._held.told(
                recording, told.peak_event, settings, told.at_capacity.capacity_bytes
            ),
            already=already_done(
                recording, told.peak_event, self.tape.owners.run_again, trained.checkpointing
            ),
            step_time=None if isinstance(time, str) else time,
            untimed=time if isinstance(time, str) else "",
            whole_unit=self._whole_unit(recording, told.peak_event),
            not_updated=not_updated(recording, told.peak_event, trained.parts, trained.updated),
            models=models_at_peak(recording, item, told.peak_event, trained),
        )

    def mended(self, recording: Recording, peak_event: int) -> Mended | None:
        """Return what was recorded, without graphs and gradients in vain; None: there are none."""
        item, unused = self._unused(recording, peak_event)
        return mended(recording, item, unused.every, self._trained)

    def _unused(self, recording: Recording, peak_event: int) -> tuple["NDArray[np.int64]", Unused]:
        item = with_logits(recording, classify(recording))
        return item, unused_of(recording, item, peak_event, self._trained.passes)

    def _whole_unit(self, recording: Recording, peak_event: int) -> WholeUnit | None:
        if not self._units:
            return None
        from brimful.pretend.sharding_units import whole_unit

        return whole_unit(recording, peak_event, self._units)

    def _step_time(self, recording: Recording) -> StepTime | str:
        """Sum up a step's seconds, or say why there are none; empty: nothing trains.

        Of several optimizers a phase of updates is a part of a step.
        """
        lacking = (
            (not self._trained.num_updates, ""),
            (self.world is not None and self.world.size > 1, "other processes are waited for"),
            (self.other_kernels.is_compiled, "what a compiler makes of it has no known rate"),
            (bool(self.other_kernels.launched), "kernels that are not PyTorch's have none known"),
            (not self.has_one_optimizer, "several optimizers update, each a part of a step"),
            (self.kernels != "cuda", "its kernels are a CPU's"),
        )
        why = next((words for lacks, words in lacking if lacks), None)
        return step_time(recording, self.tape, self._device) if why is None else why

    @property
    def num_steps(self) -> int:
        """How often every optimizer that has made an update has made one."""
        return self._trained.num_steps

    @property
    def has_one_optimizer(self) -> bool:
        """Whether a phase of updates ends a whole step."""
        return len(self._trained.num_updates) == 1

    def mesh(self, shape: tuple[int, ...], axes: tuple[str, ...]) -> DeviceMesh:
        """Return a mesh of the pretend world.

        Args:
            shape: Degree of each axis; their product is the world's size.
            axes: Name of each axis.
        """
        return init_device_mesh(NAME, shape, mesh_dim_names=axes)


@contextlib.contextmanager
def _gathering(tape: Tape, units: list["Unit"], trained: Trained) -> Iterator["Held"]:
    from brimful.pretend import whole_gradients  # FSDP takes a while to import
    from brimful.pretend.gathering import named_buffers
    from brimful.pretend.sharding_units import watching

    held = whole_gradients.Held()
    with (
        named_buffers(tape, kept=WHOLE_GRADIENTS),
        watching(units),
        whole_gradients.watching(tape, trained, held),
    ):
        yield held


def gpu(  # noqa: PLR0913 - what may be said of a GPU, each with a default
    name: str = "h100-80gb",
    *,
    world_size: int | None = None,
    rank: int = 0,
    imitate: kernels.Kernels = "cuda",
    assume_all_selected: bool = False,
    says_cuda: bool = True,
    assume: Collection[str] = (),
    weights_dtype: str = "",
) -> Run:
    """Return a block in which ``cuda`` is the named card: ``.cuda()``, ``torch.device("cuda")``.

    Inside, a training step costs no memory and no arithmetic, and every byte it would allocate is
    on the tape. Usable as a context manager and as a decorator: each call of the decorated function
    has a GPU of its own, and the handle tells of the last one.

    Args:
        name: A card of ``brimful gpus``, in any spelling.
        world_size: Processes in the world, each as a launcher starts it (``RANK`` and the like are
            set), in a process group that moves nothing; None: a process that nobody launched.
        rank: Which of them this is.
        imitate: Whose kernels: ``cpu`` only to compare with a run on this machine's CPU.
        assume_all_selected: Whether a result whose size values decide (``nonzero``) has the
            largest size it can have; else it ends the run with one sentence.
        says_cuda: Whether the program calls the device ``cuda``; see ``cuda_mode`` for its limits.
            Without it the device is ``gpu``, and nothing of PyTorch is translated.
        assume: Packages of kernels that are stood in for where they are not installed, of a program
            that says ``cuda``: ``triton``, ...
        weights_dtype: Of weights of the hub that are not on this machine, where the program says
            none: ``float32``, ...; empty: as they are published.

    Returns:
        The block; after it, ``recording()`` is what was recorded, ``report()`` its sum, and
        ``peaks_allocated_bytes`` the peak of every call.

    Raises:
        UnknownNameError: No such card.
        InputError: The rank is not in the world.
        UnsupportedError: What is to be assumed cannot be stood in for.
    """
    check_stand_ins(assume)
    card = card_of(name)
    device.register()
    return Run(
        card,
        imitate,
        _world(world_size, rank),
        partial(TimedTape, assume_all_selected=assume_all_selected),
        device_spec=device_named(name),
        says_cuda=says_cuda,
        assumed=assume,
        weights_dtype=weights_dtype,
    )


def _world(size: int | None, rank: int) -> World | None:
    if size is not None:
        return World(size=size, rank=rank)
    World(size=1, rank=rank)  # a rank of no world is refused
    return None


def card_of(name: str) -> Card:
    """Return what a card of ``brimful gpus`` says of itself, or a slice of one."""
    spec = device_named(name)
    capability = version_of(spec.capability)
    chip = chips().get(capability)
    return Card(
        name=spec.description,
        capability=capability,
        usable_bytes=spec.usable_bytes,
        num_devices=1,
        multi_processor_count=chip.num_multiprocessors if chip else 0,
        shared_bytes_per_block=chip.shared_bytes_per_block if chip else 0,
    )
