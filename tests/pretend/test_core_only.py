"""The pretend GPU needs the core and torch: programs of others bring versions of the rest."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

SOURCE = Path(__file__).parents[2] / "src"
SCRIPT = """\
import torch
model = torch.nn.Linear(1024, 1024, bias=False).to("cuda")
model(torch.randn(8, 1024, device="cuda")).sum().backward()
torch.save(model.state_dict(), "weights.pt")
try:
    import transformers
except ModuleNotFoundError:
    print("no transformers")
"""
MATRIX = 4 * 1024 * 1024


def needed(name, found):
    """Add to ``found`` the distributions that one needs without any extra, itself among them."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return found
    try:
        found[key] = metadata.distribution(name)
    except metadata.PackageNotFoundError:  # for another platform or Python
        return found
    for line in found[key].requires or ():
        if "extra ==" not in line:
            needed(re.match(r"[\w.-]+", line)[0], found)
    return found


@pytest.fixture
def core_and_torch(tmp_path):
    """Make a folder of links to what ``pip install brimful torch`` installs, and nothing else."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for distribution in needed("torch", needed("brimful", {})).values():
        tops = {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}
        for top in tops - {path.name for path in folder.iterdir()}:
            (folder / top).symlink_to(distribution.locate_file(top))
    assert not (folder / "transformers").exists()
    return folder


def test_a_plain_script_needs_the_core_and_torch(core_and_torch, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = ["-m", "brimful", "pretend", "--gpu", "t4", "--json", "--", str(script)]
    done = subprocess.run(
        [sys.executable, "-S", "-W", "ignore", *words],
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{core_and_torch}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no transformers" in done.stderr
    report = json.loads(done.stdout)
    assert [line.split()[0] for line in report["versions"]] == ["python", "torch", "brimful"]
    held = {item["name"]: item["num_bytes"] for item in report["items"]}
    assert held["parameters"] == held["gradients"] == MATRIX
    assert not (tmp_path / "weights.pt").exists()
