"""Keeping libraries from talking over our own output, and threads from spinning."""

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_TALKATIVE = (
    "bitsandbytes.backends.cpu.ops", "torch.utils._pytree", "torchao",
    "torch.distributed.tensor._redistribute", "transformers.integrations.hub_kernels",
    "transformers.modeling_rope_utils", "torch._higher_order_ops.wrap",
)  # fmt: skip
"""Loggers that say at every import which kernels or enums of theirs this machine has no use for, or
that experts which two axes shard are gathered axis by axis; that kernels are not installed, which
we say; that a configuration of the maker's own is odd; what a selective checkpoint that is compiled
must not contain."""

_SCHEDULES = "torch.distributed.pipelining.schedules"
"""Prints its whole schedule, a line for each action of each stage, at any exception on its way up,
be it that a search's time is over."""

_OF_CUDA = "bitsandbytes.cextension"
"""Prints the traceback of its library, which needs CUDA's, at import; whoever calls it is told."""

_OF_SHAPES = "torch._subclasses.fake_tensor"
"""Prints the traceback of a shape that does not fit, which is raised all the same."""


def quiet_libraries() -> None:
    """Silence progress bars and notices of torch's profiler, transformers and quantisers.

    To be called before they are imported; what the user has set in the environment stays.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns that times are not collected
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # Threads of a CPU that wait for each other spin for milliseconds, during which nobody else on a
    # busy machine gets on, the one that they wait for included: toys were four times slower.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # PEFT asks transformers for an attribute by its old name.
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
    # Blocks that are compiled end in a view; nobody writes into it.
    warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module \(.*\) returned a view tensor")
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in (_SCHEDULES, _OF_CUDA):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger(_OF_SHAPES).disabled = True  # a level of its own PyTorch resets


_OF_OLD_NAMES = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)


@contextlib.contextmanager
def own_warnings_alone(is_library: Callable[[str], bool]) -> Iterator[None]:
    """Show what a program warns of by itself, and nothing that libraries warn it of.

    ``is_library``: whether a file is one's.
    """
    original: Any = warnings.showwarning

    def show(message: Any, category: Any, filename: str, *more: Any, **how: Any) -> None:
        if not issubclass(category, _OF_OLD_NAMES) and not is_library(filename):
            original(message, category, filename, *more, **how)

    warnings.showwarning = show
    try:
        yield
    finally:
        if warnings.showwarning is show:
            warnings.showwarning = original
