"""Fetching files of a hub model by its id, ``org/name``, or finding them in the local cache."""

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from brimful.errors import InputError, UnknownNameError
from brimful.models.closed import closed_words

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_SWITCH = "HF_HUB_OFFLINE"
LIMIT_S = 3.0
"""Seconds in which the hub must have answered for one small file, its address looked up."""


def is_hub_id(name: str) -> bool:
    """Whether a name is spelt like ``org/name`` and not like a file."""
    return _ID.fullmatch(name) is not None and not name.endswith((".json", ".yaml", ".yml"))


def fetch_file(hub_id: str, name: str, *, limit_s: float = LIMIT_S) -> Path:
    """Return the local copy of one small file of a hub model; the hub is asked once, and quietly.

    ``name``: the file, such as ``config.json``. Raises UnknownNameError: no such model, or none in
    the cache while the hub cannot be asked. Raises InputError: the model is gated, lacks the file,
    or the hub answers something else.
    """
    from huggingface_hub import (
        constants,
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
        try_to_load_from_cache,
    )

    cached = try_to_load_from_cache(hub_id, name)
    if isinstance(cached, str):
        return Path(cached)

    def fetch() -> Path:
        if not constants.HF_HUB_OFFLINE:
            # One question without retries; a download that begins with it asks five times.
            get_hf_file_metadata(hf_hub_url(hub_id, name), timeout=limit_s)
        return Path(hf_hub_download(hub_id, name, etag_timeout=limit_s))

    with _in_words(hub_id, name), _silent():
        return _within(limit_s, fetch)


def _within(limit_s: float, work: Callable[[], Path]) -> Path:
    """Return what ``work`` does; give up on it where it takes longer, wherever it hangs.

    Raises Exception: what ``work`` raised.
    """
    done: list[Path] = []
    failed: list[Exception] = []

    def attempt() -> None:
        try:
            done.append(work())
        except Exception as error:  # noqa: BLE001 - handed to the caller
            failed.append(error)

    # A thread, because no timeout of a connection covers looking up the hub's address.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(limit_s)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError
    return done[0]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep the client's warnings and progress bars from the screen."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    logger, were_disabled = logging.getLogger("huggingface_hub"), are_progress_bars_disabled()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if not were_disabled:
            enable_progress_bars()


def fetch_folder(hub_id: str, patterns: list[str]) -> Path:
    """Return the local folder of a hub model with the files that match any pattern.

    Raises UnknownNameError: no such model, or none in the cache while the hub cannot be asked.
    Raises InputError: the model is gated, or the hub answers something else.
    """
    from huggingface_hub import snapshot_download

    with _in_words(hub_id, patterns[0]):
        return Path(snapshot_download(hub_id, allow_patterns=patterns))


@contextlib.contextmanager
def _in_words(hub_id: str, name: str) -> Iterator[None]:
    """Turn the hub's exceptions into one sentence that says what to do."""
    try:
        yield
    except Exception as error:  # the hub's, the network's and the disk's
        raise _explain(hub_id, name, error) from error


def _explain(hub_id: str, name: str, error: Exception) -> InputError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return InputError(
            f"{hub_id} is gated; accept its terms at https://huggingface.co/{hub_id} and log in "
            f"with hf auth login"
        )
    is_missing = isinstance(error, errors.RepositoryNotFoundError)
    if (is_missing or _is_unreachable(error)) and (closed := closed_words(hub_id)):
        return UnknownNameError(f"{hub_id!r} is no open model: {closed}")
    if is_missing:
        return UnknownNameError(
            f"the hub has no model {hub_id!r}, or it is private; check the name, or log in with "
            f"hf auth login"
        )
    if _is_unreachable(error):
        from huggingface_hub import constants

        offline = constants.HF_HUB_OFFLINE
        reason = f"{_SWITCH} is set; {_SWITCH}=0 asks it" if offline else "it cannot be reached"
        return UnknownNameError(
            f"no model {hub_id!r} is known, no {name} of it is here, and the hub was not asked "
            f"({reason}); give the path of its config.json, or fetch it with hf download {hub_id}; "
            f"brimful pretend runs a script of any model"
        )
    if isinstance(error, errors.EntryNotFoundError):
        return InputError(f"{hub_id} has no {name} on the hub; give another model")
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return InputError(
        f"{name} of {hub_id} could not be fetched ({reason}); try again, or give a folder"
    )


def _is_unreachable(error: Exception) -> bool:
    """Whether no answer of the hub came: by the kinds of the hub's, the disk's and its client's."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        return True
    # The client's own are of httpx, or of a fork of it, by these names.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, TimeoutError) or "TransportError" in kinds
