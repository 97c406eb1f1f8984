"""Fetching files of a hub model by its id, ``org/name``, or finding them in the local cache."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from brimful.errors import InputError, UnknownNameError

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_SWITCH = "HF_HUB_OFFLINE"


def is_hub_id(name: str) -> bool:
    """Whether a name is spelt like ``org/name`` and not like a file."""
    return _ID.fullmatch(name) is not None and not name.endswith((".json", ".yaml", ".yml"))


def fetch_file(hub_id: str, name: str) -> Path:
    """Return the local copy of one file of a hub model, downloaded where the hub may be asked.

    Args:
        hub_id: ``org/name``.
        name: The file, such as ``config.json``.

    Raises:
        UnknownNameError: No such model, or none in the cache while the hub cannot be asked.
        InputError: The model is gated, lacks the file, or the hub answers something else.
    """
    from huggingface_hub import hf_hub_download

    with _in_words(hub_id, name):
        return Path(hf_hub_download(hub_id, name))


def fetch_folder(hub_id: str, patterns: list[str]) -> Path:
    """Return the local folder of a hub model with the files that match any pattern.

    Raises:
        UnknownNameError: No such model, or none in the cache while the hub cannot be asked.
        InputError: The model is gated, or the hub answers something else.
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
    if isinstance(error, errors.RepositoryNotFoundError):
        return UnknownNameError(
            f"the hub has no model {hub_id!r}, or it is private; check the name, or log in with "
            f"hf auth login"
        )
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        return UnknownNameError(
            f"no folder {hub_id!r} here and no {name} of it in the hub's cache, and the hub was "
            f"not asked ({_reason()}); give a folder, or fetch it with hf download {hub_id}"
        )
    if isinstance(error, errors.EntryNotFoundError):
        return InputError(f"{hub_id} has no {name} on the hub; give another model")
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return InputError(
        f"{name} of {hub_id} could not be fetched ({reason}); try again, or give a folder"
    )


def _reason() -> str:
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    return f"{_SWITCH} is set; {_SWITCH}=0 asks it" if offline else "it cannot be reached"
