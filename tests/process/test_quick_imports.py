"""What is left behind where a process ends, and what has to be looked through all the same."""

import gc
import sys

from brimful.process.quick_imports import leave_behind


def test_all_but_triton_is_left_behind(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", sys)
    before = gc.get_freeze_count()
    leave_behind()
    assert gc.get_freeze_count() == before, "its library would list what is left of it"
    monkeypatch.delitem(sys.modules, "triton")
    leave_behind()
    assert gc.get_freeze_count() > before
