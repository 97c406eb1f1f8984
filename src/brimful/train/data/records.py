"""Records, and what becomes of those that cannot be used. Knows no file format and no tokenizer."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from brimful.errors import DataError
from brimful.train.data.source import OnBadRecord

_NUM_NAMES = 6


class Record(NamedTuple):
    """One record of a file.

    Attributes:
        fields: Its fields by name.
        where: The file and the line, row or item, for messages.
    """

    fields: dict[str, Any]
    where: str


class Broken(NamedTuple):
    """What stands where a record should be.

    Attributes:
        where: As for a record.
        reason: What is wrong, in words that are the same for all records with this fault.
        detail: The same for this record.
    """

    where: str
    reason: str
    detail: str


class BadRecordError(Exception):
    """A record cannot be used; whoever reads it knows where it is and what to do about it."""

    def __init__(self, reason: str, detail: str = "") -> None:
        """Keep what is wrong.

        ``reason``: the fault, the same for all records that have it: records are counted by it.
        """
        super().__init__(detail or reason)
        self.reason = reason


class Skipped(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Records that were left out for one reason.

    Attributes:
        reason: Why.
        num_records: How many.
        first: Where the first of them is.
    """

    reason: str
    num_records: int
    first: str


class Tally:
    """Counts the records that are left out, by reason, and those that were cut."""

    def __init__(self, on_bad_record: OnBadRecord) -> None:
        """Begin with none.

        ``on_bad_record``: whether a bad record ends the run or is counted.
        """
        self.on_bad_record = on_bad_record
        self.num_truncated = 0
        self._counts: dict[str, tuple[int, str]] = {}

    def bad(self, where: str, reason: str, detail: str) -> None:
        """Count a record that cannot be used, or end the run."""
        if self.on_bad_record == "stop":
            raise DataError(
                f"{where}: {detail}; correct it, or leave such records out with "
                f"--on-bad-record skip"
            )
        self.drop(where, reason)

    def drop(self, where: str, reason: str) -> None:
        """Count a record that is sound and of no use, such as an empty text."""
        count, first = self._counts.get(reason, (0, where))
        self._counts[reason] = count + 1, first

    def skipped(self) -> tuple[Skipped, ...]:
        """List what was left out, the most frequent reason first."""
        found = [
            Skipped(reason=reason, num_records=count, first=first)
            for reason, (count, first) in self._counts.items()
        ]
        return tuple(sorted(found, key=lambda skipped: (-skipped.num_records, skipped.reason)))


def sound_records(items: Iterable[Record | Broken], tally: Tally) -> Iterator[Record]:
    """Pass records on, and hand what is none to the tally."""
    for item in items:
        if isinstance(item, Broken):
            tally.bad(*item)
        else:
            yield item


def string_field(fields: dict[str, Any], name: str) -> str:
    """Return a field of text."""
    if name not in fields:
        raise BadRecordError(f"no field {name!r}", f"it has no field {name!r} ({_names(fields)})")
    value = fields[name]
    if not isinstance(value, str):
        raise BadRecordError(
            f"field {name!r} is no text", f"field {name!r} is {kind_of(value)} and must be text"
        )
    return value


def kind_of(value: Any) -> str:
    """Say what a value of a record is, in the words of JSON."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    if value is None:
        return "null"
    return names.get(type(value), f"the number {value!r}"[:40])


def describe_skipped(skipped: Iterable[Skipped]) -> str:
    """Say what was left out and why, in one line."""
    parts = [f"{part.num_records} x {part.reason} (first: {part.first})" for part in skipped]
    return "; ".join(parts) or "none"


def _names(fields: dict[str, Any]) -> str:
    names = [repr(name) for name in fields]
    more = ", ..." if len(names) > _NUM_NAMES else ""
    return f"it has {', '.join(names[:_NUM_NAMES])}{more}" if names else "it has none at all"
