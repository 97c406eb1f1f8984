"""Every exception that Brimful raises on purpose.

::

    BrimfulError
    ├── InputError (also a ValueError)   what the user gave cannot be used; exit code 2
    │   ├── NotInstalledError            it runs a program that is not there
    │   ├── UnknownNameError             a name that no table holds; says the nearest ones
    │   ├── ModelConfigError             a config.json that does not describe a model we know
    │   ├── FileFormatError              a plan, checkpoint or calibration that cannot be read
    │   └── DataError                    training data that cannot be read
    ├── UnsupportedError                 the tool knows what was asked and cannot do it; exit code 2
    │   └── UnknownMemoryError           nobody knows here what it takes but its parameters
    ├── RunError                         a run that had started could not go on; exit code 2
    └── OutOfTimeError                   a search found no answer within its budget; exit code 124

A job that does not fit is an answer, not an exception (exit code 1). A message is one sentence
that says what was wrong, both numbers where there are two, and what to change.
"""

import difflib
from collections.abc import Iterable, Mapping

MORE, LESS = "more", "less"
"""What is answered instead takes so much beside what was asked."""


class BrimfulError(Exception):
    """The root: anything raised on purpose, with a message fit to be shown as it is.

    Attributes:
        nearest: Values of the job or the strategy with which the nearest question can be answered,
            by name; a value of None: left to a default. Empty: nobody knows of any.
        on_top: What there is beside what is answered then, and room has to be left for: ``images``
            or ``rollouts``; empty: nothing.
        takes: Whether what is answered then takes ``MORE`` or ``LESS`` than what was asked, so that
            a verdict may not be that of what was asked; empty: as much.
        lower: Where that takes ``MORE``, values with which what is answered takes no more than what
            was asked; empty: nobody knows of any.
        unlike: Why no verdict on ``nearest`` says anything of what was asked; empty: it does.
    """

    def __init__(  # noqa: PLR0913 - what is known of the nearest question
        self,
        message: str = "",
        *,
        nearest: Mapping[str, object] | None = None,
        on_top: str = "",
        takes: str = "",
        lower: Mapping[str, object] | None = None,
        unlike: str = "",
    ) -> None:
        """Keep what is said, and what could be asked instead."""
        super().__init__(message)
        self.nearest = dict(nearest or {})
        self.on_top = on_top
        self.takes = takes
        self.lower = dict(lower or {})
        self.unlike = unlike


class InputError(BrimfulError, ValueError):
    """What the user gave cannot be used."""


class NotInstalledError(InputError):
    """What was asked for runs a program that is not there."""


class UnknownNameError(InputError):
    """A name that no table holds."""


class ModelConfigError(InputError):
    """A model configuration that is broken or of an unknown architecture."""


class FileFormatError(InputError):
    """A file of ours that cannot be read as what it should be."""


class DataError(InputError):
    """Training data that cannot be read."""


class UnsupportedError(BrimfulError):
    """The request is understood and this version cannot do it."""


class UnknownMemoryError(UnsupportedError):
    """Of what was asked nothing is known but how many parameters it has."""


class RunError(BrimfulError, RuntimeError):
    """A run that had started could not go on (full disk, lost worker)."""


class OutOfTimeError(BrimfulError):
    """A search ended with its budget, and what it was to find is not known."""


_MOST_HINTS = 3


def unknown_name(kind: str, name: str, known: Iterable[str], *, more: str = "") -> UnknownNameError:
    """Build the error for a misspelt or shortened name, with the nearest known ones.

    Args:
        kind: What the name should have named, e.g. ``"model"``.
        name: What was given.
        known: Every name that would have been understood.
        more: A closing hint, e.g. which command lists the names.

    Returns:
        The error, to be raised by the caller.
    """
    names = sorted(known)
    holding = [known for known in names if name and name.lower() in known.lower()]
    alike = difflib.get_close_matches(name.lower(), names, n=_MOST_HINTS, cutoff=0.5)
    near = list(dict.fromkeys([*holding, *alike]))[:_MOST_HINTS]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names[:12])}"
    return UnknownNameError(f"unknown {kind} {name!r}; {hint}{more and ' ' + more}")
