"""Paths that are no files: pipes where data are read, loops of links where files are written."""

import os

import pytest

from brimful.errors import RunError
from brimful.files.writing import write_text


def test_a_loop_of_links_is_not_written_to(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(RunError, match=r"loop.*(is a loop of links|cannot be written)"):
        write_text(tmp_path / "loop" / "plan.yaml", "text")


@pytest.mark.torch
def test_a_pipe_is_no_data_and_is_not_waited_for(tmp_path, monkeypatch, capsys):
    from brimful.cli.main import main

    monkeypatch.chdir(tmp_path)
    os.mkfifo("data.txt")
    argv = ["train", "gpt2", "--gpus", "local", "--data", "data.txt", "--preview"]
    assert main(argv) == 2
    assert "data.txt is a pipe or a device" in capsys.readouterr().err
