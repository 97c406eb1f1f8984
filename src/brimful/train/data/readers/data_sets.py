"""Data sets of the ``datasets`` library: saved in a folder, or on the hub."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brimful.errors import DataError
from brimful.train.data.readers.base import Needs, check_columns, require
from brimful.train.data.records import Broken, Record
from brimful.train.data.source import DataSource

_SAVED = ("dataset_info.json", "dataset_dict.json")


def is_saved(path: Path) -> bool:
    """Say whether a folder was written by ``save_to_disk``."""
    return any((path / name).is_file() for name in _SAVED)


def open_saved(source: DataSource) -> Any:
    """Open a data set that ``save_to_disk`` wrote; its rows stay on disk."""
    library = require("datasets", "data set folders")
    try:
        opened = library.load_from_disk(source.path)
    except Exception as error:  # the library raises many kinds
        raise DataError(
            f"{source.path} is no sound data set folder ({_reason(error)}); save it again"
        ) from error
    if not isinstance(opened, library.DatasetDict):
        return opened
    if source.split not in opened:
        raise DataError(
            f"{source.path} has the splits {', '.join(map(str, opened))} and "
            f"split={source.split} is none of them; name one of them"
        )
    return opened[source.split]


def open_hub(source: DataSource) -> Any:
    """Open a data set of the hub, from the local cache where there is no network."""
    library = require("datasets", "data sets of the hub")
    try:
        return library.load_dataset(
            source.path, source.config, split=source.split, streaming=source.streaming
        )
    except Exception as error:  # the library raises many kinds
        raise DataError(
            f"{source.path} is no path on this machine, and as a data set of the hub it cannot be "
            f"loaded ({_reason(error)}); give a path, check name, config and split="
            f"{source.split}, or go online once so that it is cached"
        ) from error


def read_data_set(opened: Any, name: str, needs: Needs) -> Iterator[Record | Broken]:
    """Read one record per row.

    ``opened``: a ``Dataset`` or an ``IterableDataset``. ``needs``: columns that it must have.
    """
    if opened.column_names is not None:
        check_columns(opened.column_names, needs, name)
    number = 0
    try:
        for fields in opened:
            number += 1
            yield Record(fields, f"{name} row {number}")
    except Exception as error:  # the library raises many kinds
        raise DataError(
            f"{name} cannot be read after row {number} ({_reason(error)}); check the data set"
        ) from error


def identity(opened: Any) -> str:
    """Return what stands for the content of an opened data set."""
    return str(getattr(opened, "_fingerprint", None) or getattr(opened, "info", ""))


def _reason(error: Exception) -> str:
    if os.environ.get("HF_HUB_OFFLINE") or os.environ.get("HF_DATASETS_OFFLINE"):
        return "offline mode is set and it is not in the cache"
    return (str(error) or type(error).__name__).partition("\n")[0][:200]
