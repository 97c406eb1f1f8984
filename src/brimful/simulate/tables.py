"""The tables of a profile that is being made: what its runs refer to by number."""

from dataclasses import dataclass, field

from brimful.cost.profiles import EventKind, Work


@dataclass(frozen=True, slots=True)
class Tables:
    """The distinct kinds and works of a profile, numbered in order of appearance."""

    kinds: dict[EventKind, int] = field(default_factory=dict)
    works: dict[Work, int] = field(default_factory=dict)

    def kind(self, kind: EventKind) -> int:
        """Return the number of a kind."""
        return self.kinds.setdefault(kind, len(self.kinds))

    def work(self, work: Work) -> int:
        """Return the number of a work."""
        return self.works.setdefault(work, len(self.works))
