"""Liger on the command line: searched where it is installed, and told where it is not."""

from importlib.util import find_spec

import pytest
import yaml
from tests.cli.conftest import TINY

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("liger_kernel") is None, reason="liger-kernel is not installed"),
]
ASKED = (
    "plan", *TINY, "--global-batch", "4", "--seq-len", "32", "--objective", "memory", "--no-proof",
    "--micro-batch", "1", "--ac", "full",
    "-o", "p.yaml",
)  # fmt: skip


def planned(folder):
    return yaml.safe_load((folder / "p.yaml").read_text())["strategy"]["fused_kernels"]


def test_a_plan_weighs_them_where_they_are_installed(brimful, folder, monkeypatch):
    monkeypatch.setattr("brimful.cli.searching.find_spec", lambda _name: True)
    said = brimful(*ASKED)
    assert said.code == 0
    assert planned(folder) == "liger"
    assert "Liger" in said.out


def test_elsewhere_they_are_asked_for_and_the_answer_says_what_to_install(
    brimful, folder, monkeypatch
):
    for module in ("searching", "assumed"):
        monkeypatch.setattr(f"brimful.cli.{module}.find_spec", lambda _name: None)
    assert brimful(*ASKED).code == 0
    assert planned(folder) == "none"
    said = brimful(*ASKED, "--fused-kernels", "liger")
    assert planned(folder) == "liger"
    assert "pip install 'brimful[liger]'" in said.out
