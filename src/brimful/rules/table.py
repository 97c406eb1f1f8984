"""Every rule in one tuple, and the check of all of them on one subject."""

from collections.abc import Iterator

from msgspec.structs import replace

from brimful.errors import InputError, UnsupportedError
from brimful.rules.base import Checked, Finding, Rule, stated
from brimful.rules.calculators import CALCULATOR_RULES
from brimful.rules.devices import DEVICE_RULES
from brimful.rules.kernels import KERNEL_RULES
from brimful.rules.memory import MEMORY_RULES
from brimful.rules.precision import PRECISION_RULES
from brimful.rules.subject import Subject

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (*MEMORY_RULES, *PRECISION_RULES, *KERNEL_RULES, *DEVICE_RULES, *CALCULATOR_RULES),
        key=lambda rule: rule.group == "other calculators",
    )
)
"""In the order of their groups; other calculators come last."""


def check_rules(subject: Subject) -> Iterator[Checked]:
    """Check every rule on a model and a GPU.

    Yields a row per rule; one that no formula of ours covers is ``unknown`` and says why.
    """
    for rule in RULES:
        found = _for_method(rule, _check(rule, subject), subject)
        yield Checked(
            key=rule.key,
            group=rule.group,
            statement=rule.statement,
            stated=rule.stated,
            says=found.says,
            ours=found.ours,
            verdict=found.verdict,
            error=found.error,
            why=found.why,
        )


def _for_method(rule: Rule, found: Finding, subject: Subject) -> Finding:
    """Say of a rule about training every parameter that it is none about adapters."""
    if not rule.is_of_full or subject.job.adapter is None or found.verdict != "holds":
        return found
    why = f"every parameter trains, and with method={subject.job.method} few do; {found.why}"
    return replace(found, verdict="holds only when", why=why)


def _check(rule: Rule, subject: Subject) -> Finding:
    try:
        return rule.check(subject)
    except (UnsupportedError, InputError) as error:
        return stated("unknown", says=rule.stated, ours="unknown", why=str(error))
