"""Bombs, pipes, loops of links and files that are something else, wherever a file is read."""

import json
import os

import pytest
from tests.cli.conftest import CONFIG

GPU = ("--gpus", "h100-80gb")
READERS = {
    "config": ("config.json", ("estimate", "config.json", *GPU)),
    "plan": ("x.yaml", ("estimate", "x.yaml")),
    "simulated plan": ("x.yaml", ("simulate", "x.yaml")),
    "exported plan": ("x.yaml", ("export", "x.yaml", "--to", "deepspeed")),
    "prices": ("p.yaml", ("estimate", "gpt2", *GPU, "--prices", "p.yaml")),
    "prices to shop by": ("p.yaml", ("shop", "gpt2", "--tokens", "1B", "--prices", "p.yaml")),
    "runs to validate": ("r.jsonl", ("validate", "--file", "r.jsonl")),
    "deepspeed": ("d.json", ("plan", "gpt2", "--gpus", "2xh100-80gb", "--from", "d.json")),
}
DEEP = 100_000
CONTENTS = {
    "nothing": b"",
    "deep lists": b"[" * DEEP,
    "deep lists, closed": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP,
    "deep blocks": b"- " * 50_000,
    "a huge whole number": b"9" * 100_000,
    "a field with a huge number": b'{"model_type": "llama", "hidden_size": '
    + b"9" * 100_000
    + b"}",
    "not UTF-8": b"\xff\xfe\x00\x01" * 100,
    "null characters": b"\0" * 1000,
    "a BOM and nothing": b"\xef\xbb\xbf",
    "UTF-16": '{"model_type": "llama"}'.encode("utf-16"),
    "50 MB of spaces": b" " * 50_000_000,
    "50 MB of text": b'{"a": "' + b"x" * 50_000_000 + b'"}',
    "aliases": b"a0: &a0 [x, x]\n"
    + b"".join(b"a%d: &a%d [%s]\n" % (i, i, b"*a%d, " % (i - 1) * 9) for i in range(1, 40)),
    "an alias of itself": b"model: &m {a: *m}\n",
    "merged aliases": b"a0: &a0 {k: v}\n"
    + b"".join(b"a%d: &a%d {l: [%s]}\n" % (i, i, b"*a%d, " % (i - 1) * 9) for i in range(1, 40)),
    "a tag": b"!!python/object/apply:os.system ['touch harm']\n",
}


@pytest.fixture(params=READERS)
def reader(request, folder):
    name, argv = READERS[request.param]
    return folder / name, argv


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_no_content_does_harm(reader, refused, folder, content):
    path, argv = reader
    path.write_bytes(content)
    assert path.name in refused(*argv)
    assert not (folder / "harm").exists()


def test_no_place_does_harm(reader, refused):
    path, argv = reader
    path.mkdir()
    refused(*argv)
    path.rmdir()
    path.symlink_to(path)
    refused(*argv)
    path.unlink()
    os.mkfifo(path)
    refused(*argv)
    path.unlink()
    path.symlink_to("/dev/zero")
    refused(*argv)


ABSURD = {
    "10^9 layers": {"num_hidden_layers": 10**9},
    "10^12 wide": {"hidden_size": 10**12, "head_dim": 10**11},
    "10^15 words": {"vocab_size": 10**15},
    "10^30 words": {"vocab_size": 10**30},
    "10^9 heads": {"num_attention_heads": 10**9, "num_key_value_heads": 10**9},
    "10^18 positions": {"max_position_embeddings": 10**18},
    "10^400 wide": {"intermediate_size": 10**400},
    "an infinite width": {"hidden_size": float("inf")},
    "a width that is none": {"hidden_size": float("nan")},
}


@pytest.mark.parametrize("verb", ["estimate", "plan", "simulate", "shop"])
@pytest.mark.parametrize("changes", ABSURD.values(), ids=ABSURD)
def test_absurd_sizes_are_answered_or_refused_at_once(brimful, folder, verb, changes):
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    more = ("--tokens", "1B") if verb == "shop" else (*GPU, "--seq-len", "64")
    said = brimful(verb, "config.json", *more)
    assert said.code in {0, 1, 2}
    assert said.code != 2 or said.err.count("\n") == 1
    assert "Traceback" not in said.err


NAMES = ["a\nb", "\x1b[31mred\x1b[0m", "\u202egnp", "\0", "n" * 5000, "'\"`$(x)",
         "../../etc/passwd",
         "-rf", "--", "\u2028", "\ud800", "", " ", "\u0430dam", "%s%n",
         "{0.__class__}", "<b>x</b>"]  # fmt: skip


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("flag", ["model", "gpus", "network", "precision", "prices"])
def test_odd_names_are_told_in_plain_characters(refused, flag, name):
    if flag == "model":
        refused("estimate", name, *GPU)
    else:
        refused("estimate", "gpt2", *GPU, f"--{flag}={name}")
