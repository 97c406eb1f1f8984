"""A simulated plan whose kernels are not all known says so in its first line."""

import json

import pytest

from brimful.cli.main import main
from brimful.show.summary import LOWER_BOUND

pytestmark = pytest.mark.torch

ASKED = ["simulate", "tinyllama-1.1b", "--micro-batch", "1", "--seq-len", "128"]


def test_cudnn_s_attention_makes_a_peak_a_bound_where_nobody_measured_it(capsys):
    main([*ASKED, "--gpus", "b200"])
    printed = capsys.readouterr().out
    assert LOWER_BOUND in printed.splitlines()[0]
    assert "scaled_dot_product_cudnn_attention" in printed
    main([*ASKED, "--gpus", "h100-80gb"])
    assert LOWER_BOUND not in capsys.readouterr().out
    main([*ASKED, "--gpus", "a100-80gb", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert next(iter(printed)) == "statement"
    assert printed["statement"].startswith("simulated peak ") == (not printed["unknown_ops"])
