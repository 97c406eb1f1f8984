"""A Hugging Face Trainer's own first steps, again, on the pretend GPU.

The very Trainer is copied, whatever class it is of, with a copy of its model that takes no memory,
and trains on the batches that the run was given. Nothing of the run is touched: what ``accelerate``
keeps for a whole process is put back.
"""

import contextlib
import copy
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerControl, TrainerState
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from brimful.errors import UnsupportedError
from brimful.watch.twin import DEVICE, recall, twins

_SHARED = (PartialState, AcceleratorState, GradientState)
_QUIET = {
    "report_to": [], "logging_strategy": "no", "eval_strategy": "no", "save_strategy": "no",
    "eval_on_start": False, "push_to_hub": False, "load_best_model_at_end": False,
    "disable_tqdm": True, "use_cpu": False, "auto_find_batch_size": False,
    "dataloader_num_workers": 0, "num_train_epochs": 1, "resume_from_checkpoint": None,
}  # fmt: skip
"""What the copy does otherwise: it writes nothing, judges nothing, and is on the GPU."""


def train_twin(trainer: Trainer, batches: Sequence[Any], *, num_steps: int) -> Trainer:
    """Train a copy of a Trainer; to be called where a pretend GPU is.

    Args:
        trainer: It has been prepared to train.
        batches: As ``note`` remembers them, all that ``num_steps`` steps were given.
        num_steps: Optimizer steps.

    Returns:
        The copy, which holds its model and optimizer.

    Raises:
        UnsupportedError: The Trainer runs on several devices, or its model cannot be copied.
    """
    if trainer.args.world_size > 1:
        raise UnsupportedError(
            f"a Trainer on {trainer.args.world_size} processes is measured, not simulated, by this "
            f"version; run it on one process to compare"
        )
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    with _own_state(), tempfile.TemporaryDirectory() as folder:
        twin = copy.copy(trainer)
        twin.args = _arguments(trainer.args, folder, num_steps)
        twin.model, twin.optimizer = twins(trainer.model, optimizer)
        _unwrap(twin.model)
        twin.model_wrapped, twin.lr_scheduler = twin.model, None
        twin.state, twin.control = TrainerState(), TrainerControl()
        twin.callback_handler = CallbackHandler(
            [DefaultFlowCallback()], twin.model, trainer.processing_class, None, None
        )
        twin.create_accelerator_and_postprocess()
        loader = DataLoader([recall(batch) for batch in batches], batch_size=None)
        twin.get_train_dataloader = lambda: loader
        twin.train()
        return twin


def _arguments(args: Any, folder: str, num_steps: int) -> Any:
    """Return the same arguments, with nothing written and on the device that is pretended."""
    copied = copy.copy(args)
    for name, value in _QUIET.items():
        setattr(copied, name, value)
    copied.output_dir, copied.max_steps = folder, num_steps
    for name in ("_setup_devices", "__cached__setup_devices"):  # its device is found anew
        vars(copied).pop(name, None)
    assert copied.device.type == DEVICE  # asking finds it, which forgets any accelerator
    return copied


def _unwrap(model: torch.nn.Module) -> None:
    """Take off what ``accelerate`` wrapped around a forward pass: it would run the real model's."""
    vars(model).pop("_is_accelerate_prepared", None)
    original = vars(model).pop("_original_forward", None)
    if original is not None:
        vars(model).pop("forward", None)
        if getattr(original, "__func__", None) is not type(model).forward:
            model.forward = original


@contextlib.contextmanager
def _own_state() -> Iterator[None]:
    """Let what ``accelerate`` keeps for a process be found anew inside the block."""
    before = [dict(shared._shared_state) for shared in _SHARED]  # noqa: SLF001
    for shared in _SHARED:
        shared._shared_state.clear()  # noqa: SLF001
    try:
        yield
    finally:
        for shared, kept in zip(_SHARED, before, strict=True):
            shared._shared_state.clear()  # noqa: SLF001
            shared._shared_state.update(kept)  # noqa: SLF001
