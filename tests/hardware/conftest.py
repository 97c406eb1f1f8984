import os

import pytest

from brimful.hardware import probe


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put a program of this name first on the path, beside a torch that could use a GPU."""

    def install(script):
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(probe, "_torch_version", lambda: "2.13.0+cu130")
    return install
