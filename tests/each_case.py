"""Many small cases in one test, where an item of pytest's own would cost more than its check.

To set an item up, take it down and report it costs 1.5 ms of a processor, and each worker collects
it besides. What one case checks of one row of a table often costs a tenth of that.
"""

import functools
import inspect

import pytest


def each(names, cases):
    """Call a test with each case in turn, as ``pytest.mark.parametrize`` says it, in one item.

    All cases are looked at whatever one of them says, and each that fails is told with its case.
    Fixtures are the same for all, so that none of them may be changed by a case.
    """
    names, cases = [name.strip() for name in names.split(",")], list(cases)
    assert cases, "no case would be looked at"

    def decorate(test):
        @functools.wraps(test)
        def all_of_them(**fixtures):
            failed, skipped = [], []
            for case in cases:
                given = dict(zip(names, [case] if len(names) == 1 else case, strict=True))
                try:
                    test(**given, **fixtures)
                except pytest.skip.Exception:
                    skipped.append(given)
                except (Exception, BaseExceptionGroup, pytest.fail.Exception) as error:  # noqa: BLE001
                    error.add_note(f"where {given}")
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(cases)} cases", failed)
            if len(skipped) == len(cases):
                pytest.skip("each of its cases")

        whole = inspect.signature(test)
        rest = [p for name, p in whole.parameters.items() if name not in names]
        all_of_them.__signature__ = whole.replace(parameters=rest)
        return all_of_them

    return decorate
