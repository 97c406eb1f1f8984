"""Streams and events of the pretend GPU: which stream is current, and where the program waits.

Nothing runs, so a stream is a number. It matters to memory twice: the caching allocator keeps pools
per stream, and a block used by another stream is free again only when that stream has been waited
for. Knows nothing of tapes: whoever wants to hear of waits puts a callable into ``on_wait``.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Self

import torch

from brimful.pretend.libraries import library

DEFAULT_ID = 0
_DEVICE_TYPE = 20
"""PrivateUse1, as ``c10/core/DeviceType.h`` numbers it."""
_DEVICE_NAME = "privateuseone"
on_wait: list[Callable[[], None]] = []
"""Called whenever the host waits for work on a device."""
on_use: list[Callable[[torch.Tensor, torch.Stream], None]] = []
"""Called with a tensor and a stream that is said to use it, where no mode sees it said."""


def _waited() -> None:
    for hear in on_wait:
        hear()


@cache
def register() -> None:
    """Hear of ``record_stream`` from programs that turn modes off for it, as FSDP1 does."""
    library("PrivateUse1").impl("record_stream", _used)


def _used(tensor: torch.Tensor, stream: torch.Stream) -> None:
    for hear in on_use:
        hear(tensor, stream)


class Event(torch.Event):  # type: ignore[misc]  # torch is untyped to mypy
    """A point in a stream's work, passed at once: never recorded, so that PyTorch waits for none.

    One of PyTorch's own kind, as its own streams (``torch.accelerator.current_stream``) read it.
    """

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        """Make an event; flags such as ``enable_timing`` are taken and change nothing."""
        made: Self = super().__new__(cls, device=torch.device(_DEVICE_NAME, 0))
        return made

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        """Do nothing: all is said when it is made."""

    def record(self, stream: object = None) -> Self:  # noqa: ARG002
        """Mark the end of what the stream was given so far."""
        return self

    def wait(self, stream: object = None) -> None:
        """Let a stream wait for the event."""

    def query(self) -> bool:
        """Say that the work before the event is done."""
        return True

    def synchronize(self) -> None:
        """Let the host wait for the event."""
        _waited()

    def elapsed_time(self, end_event: object) -> float:  # noqa: ARG002
        """Return the milliseconds between two events: none, for nothing runs."""
        return 0.0


class Stream(torch.Stream):  # type: ignore[misc]  # torch is untyped to mypy
    """A queue of work on one device, numbered; 0 is the default stream of a device."""

    _made = DEFAULT_ID

    def __new__(
        cls,
        device: Any = None,
        priority: int = 0,  # noqa: ARG004 - taken as PyTorch's streams take it
        stream_id: int | None = None,
        **_kwargs: object,
    ) -> Self:
        """Make a stream on ``device`` (an index, a device, or None for the current one)."""
        if stream_id is None:
            Stream._made += 1
            stream_id = Stream._made
        made: Self = super().__new__(
            cls, stream_id=stream_id, device_index=index_of(device), device_type=_DEVICE_TYPE
        )
        return made

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        """Do nothing: the number and the device are given when it is made."""

    @property
    def cuda_stream(self) -> int:
        """The number under which libraries know it."""
        return int(self.stream_id)

    def record_event(self, event: Event | None = None) -> Event:
        """Mark the end of what it was given so far."""
        return event or Event()

    def wait_event(self, event: object) -> None:
        """Let later work wait for an event."""

    def wait_stream(self, stream: object) -> None:
        """Let later work wait for another stream."""

    def query(self) -> bool:
        """Say that its work is done."""
        return True

    def synchronize(self) -> None:
        """Let the host wait for its work."""
        _waited()

    def __enter__(self) -> Self:
        """Make it current."""
        self._context = Use(self)
        self._context.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        """Make the stream before it current again."""
        self._context.__exit__(*exc)


class Use:
    """A context in which a stream, and its device, are current; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        """Keep the stream."""
        self._stream = stream

    def __enter__(self) -> Stream | None:
        """Make the stream current."""
        if self._stream is not None:
            self._before = _State.device, current(self._stream.device)
            set_current(self._stream)
        return self._stream

    def __exit__(self, *exc: object) -> None:
        """Make the ones before it current again."""
        if self._stream is not None:
            set_current(self._before[1])
            _State.device = self._before[0]


class UseDevice:
    """A context in which a device is current; None or a negative index changes nothing.

    Attributes:
        index: Which device it is.
        idx: The same, under the name that ``torch.cuda.device`` has for it.
    """

    def __init__(self, device: Any) -> None:
        """Keep the device."""
        self.index = -1 if device is None else index_of(device)
        self.idx = self.index

    def __enter__(self) -> Self:
        """Make the device current."""
        self._before = _State.device
        if self.index >= 0:
            _State.device = self.index
        return self

    def __exit__(self, *exc: object) -> None:
        """Make the one before it current again."""
        _State.device = self._before


class _State:
    """What is current, for the whole process."""

    device = 0
    streams: dict[int, Stream] = {}  # noqa: RUF012 - the one place where it is kept


def index_of(device: Any) -> int:
    """Return the index that an int, a string, a device or None (the current one) stands for."""
    if device is None:
        return _State.device
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return _State.device if index is None else int(index)


def current_device() -> int:
    """Return the current device's index."""
    return _State.device


def set_device(device: Any) -> None:
    """Make a device current."""
    _State.device = index_of(device)


def default(device: Any = None) -> Stream:
    """Return a device's default stream."""
    return Stream(device, stream_id=DEFAULT_ID)


def current(device: Any = None) -> Stream:
    """Return a device's current stream."""
    index = index_of(device)
    if index not in _State.streams:
        _State.streams[index] = default(index)
    return _State.streams[index]


def current_id(index: int) -> int:
    """Return the number of the current stream of device ``index``."""
    stream = _State.streams.get(index)
    return DEFAULT_ID if stream is None else stream.stream_id


def number_of(stream: Any) -> int:
    """Return the number of a stream, ours or PyTorch's own kind."""
    return int(stream.stream_id)


def set_current(stream: Stream) -> None:
    """Make a stream, and its device, current."""
    _State.streams[stream.device.index] = stream
    _State.device = stream.device.index


def reset() -> None:
    """Forget every stream: what is current, and the numbers given out."""
    _State.device, _State.streams, Stream._made = 0, {}, DEFAULT_ID  # noqa: SLF001


def synchronize(device: Any = None) -> None:  # noqa: ARG001
    """Let the host wait for a device's work."""
    _waited()
