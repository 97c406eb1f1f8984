"""Safetensors whose headers lie, and indexes that lead elsewhere: refused, and nothing is read."""

import json
import resource
import struct
from importlib import import_module

import msgspec
import pytest

from brimful.errors import BrimfulError
from brimful.hardware.gpus import load_cluster
from brimful.search.pins import Pins
from brimful.search.solve import solve
from samples import make_job

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def _torch_is_there():
    """Importing takes seconds, which are none of a test's."""
    import_module("brimful.build.weight_files")
    import_module("brimful.train.checkpoint")


MIB = 2**20
MOST_GROWN_BYTES = 512 * MIB


def header(text, *, length=None, data=b"\0" * 16):
    """Return a file with that header, whose length is said truly or not."""
    encoded = text if isinstance(text, bytes) else json.dumps(text).encode()
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded + data


def tensor(**changes):
    return {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}}


LIES = {
    "a header beyond the file": header(tensor(), length=10**6),
    "a header of 2^63 bytes": header(tensor(), length=2**63),
    "a header of 2^64 - 1 bytes": header(tensor(), length=2**64 - 1),
    "no header": struct.pack("<Q", 0),
    "seven bytes": b"\0" * 7,
    "offsets beyond the file": header(tensor(data_offsets=[0, 10**12], shape=[25 * 10**10])),
    "negative offsets": header(tensor(data_offsets=[-16, 0])),
    "offsets the wrong way": header(tensor(data_offsets=[16, 0])),
    "overlapping tensors": header(
        {**tensor(), "v": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    ),
    "a hole": header(tensor(data_offsets=[8, 24]), data=b"\0" * 24),
    "a type of another size": header(tensor(dtype="F64")),
    "no such type": header(tensor(dtype="EVIL")),
    "a shape of another size": header(tensor(shape=[2**40])),
    "a shape that overflows": header(tensor(shape=[2**32, 2**32, 2**32])),
    "a negative shape": header(tensor(shape=[-4])),
    "a list": header([1, 2]),
    "deep lists": header(b"[" * 100_000),
    "not UTF-8": header(b"\xff" * 64),
    "100 MB of spaces": header(b"{" + b" " * (100 * 10**6) + b"}", data=b""),
}


@pytest.mark.parametrize("content", LIES.values(), ids=LIES)
def test_a_header_that_lies_is_refused(tmp_path, content):
    from brimful.build.weight_files import find_files

    (tmp_path / "model.safetensors").write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BrimfulError) as refused:
        find_files(str(tmp_path))
    said = str(refused.value)
    assert "model.safetensors" in said
    assert said.isprintable(), ascii(said)
    assert len(said) < 1000
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < MOST_GROWN_BYTES


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "..", "a\0b", 3, None])
def test_an_index_leads_nowhere_else(tmp_path, name):
    from brimful.build.weight_files import find_files

    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "other.safetensors").write_bytes(header(tensor()))
    index = {"weight_map": {"w": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BrimfulError) as refused:
        find_files(str(folder))
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "\x1b[31mred", "\u202egnp"])
def test_a_tensors_name_is_no_path(tmp_path, name):
    from brimful.build.weight_files import find_files

    named = {name: tensor()["w"]}
    (tmp_path / "model.safetensors").write_bytes(header(named))
    assert find_files(str(tmp_path)) == {name: tmp_path / "model.safetensors"}


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", ""])
def test_a_manifest_names_no_file_outside_its_checkpoint(tmp_path, name):
    from brimful.train.checkpoint import CHECKPOINT_SCHEMA, Checkpoint, SavedFile, read_checkpoint
    from brimful.train.data.batches import START
    from brimful.train.program_state import PlainState

    cluster = load_cluster("h100-80gb", memory_limit_bytes=None)
    plan = solve(make_job(), cluster, Pins(), attention="sdpa", objective="time").plan
    state = PlainState(device="cpu", optimizer={}, groups=(), scaler=None, shared={}, on_host=(),
                       base_crc32=None)  # fmt: skip
    manifest = Checkpoint(
        schema=CHECKPOINT_SCHEMA, step=1, position=START, tokens_hash="", heldout_loss=None,
        plan=plan, state=state, torch_version="2.13.0",
        files=(SavedFile(name=name, num_bytes=1, crc32=0),),
    )  # fmt: skip
    (tmp_path / "secret").write_bytes(b"x")
    folder = tmp_path / "step-1"
    folder.mkdir()
    (folder / "checkpoint.json").write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(BrimfulError, match="outside it"):
        read_checkpoint(folder)
