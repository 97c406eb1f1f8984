"""Loggers beside ``metrics.jsonl``: one file each, chosen by name (``--track``).

Each is an observer that goes on where a run was resumed, so that no step is in its curve twice.
Their packages are optional (``pip install brimful[track]``) and imported when they are asked for.
"""

from collections.abc import Iterable
from importlib.util import find_spec

from brimful.errors import UnsupportedError, unknown_name
from brimful.train.loggers import tensorboard, wandb
from brimful.train.loggers.base import LoggedRun, MakeLogger
from brimful.train.observers import Observers

LOGGERS: dict[str, MakeLogger] = {
    "tensorboard": tensorboard.TensorBoardLogger,
    "wandb": wandb.WandbLogger,
}
"""By the name of the package, which is also what the user types."""


def check_loggers(names: Iterable[str]) -> None:
    """Refuse what cannot log, before anything is prepared.

    Raises UnknownNameError: there is no such logger.
    """
    for name in names:
        if name not in LOGGERS:
            raise unknown_name("logger", name, LOGGERS)
        if find_spec(name) is None:
            raise UnsupportedError(
                f"logging to {name} needs the package {name}, which is not installed; "
                f"pip install brimful[track]"
            )


def open_loggers(names: Iterable[str], run: LoggedRun, observers: Observers) -> None:
    """Let loggers watch a run; one that cannot start is left out, and the user is told."""
    for name in names:
        try:
            logger = LOGGERS[name](run)
        except Exception as error:  # noqa: BLE001 - their packages raise many kinds
            reason = str(error).partition("\n")[0] or type(error).__name__
            observers.on_message(f"{name} could not start ({reason}); the run goes on without it")
        else:
            observers.add(logger)
