"""Loops that write texts: few rounds run, and the tape is that of all of them."""

import numpy as np
import pytest
from tests.each_case import each

pytestmark = pytest.mark.torch

_QWEN = """
import torch
from transformers import {name}Config, {name}ForCausalLM
config = {name}Config(
    vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=1, eos_token_id=5, {more}
)
model = {name}ForCausalLM(config).to(torch.bfloat16).cuda().eval()
ids = torch.ones((3, 10), dtype=torch.long, device="cuda")
"""
_T5 = """
import torch
from transformers import T5Config, T5ForConditionalGeneration
config = T5Config(
    vocab_size=64, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
)
model = T5ForConditionalGeneration(config).cuda().eval()
ids = torch.ones((3, 10), dtype=torch.long, device="cuda")
"""
_MASK = "mask = torch.ones_like(ids); mask[0, :3] = 0\n"
_WRITE = """
text = model.generate(ids, max_new_tokens=40, pad_token_id=0, {how})
"""
_AFTER = """
text = getattr(text, "sequences", text)
assert text.shape == (3, {length}), text.shape
print("calls")
after = torch.zeros(text.numel() * 1000, device="cuda")
del text
more = torch.zeros(2000, device="cuda")
"""
_OWN = """
from transformers import DynamicCache
cache, text, given = DynamicCache(config=config), ids, ids
with torch.no_grad():
    for i in range(40):
        place = torch.arange(text.shape[1] - given.shape[1], text.shape[1], device="cuda")[None]
        out = model(given, past_key_values=cache, position_ids=place)
        given = out.logits[:, -1:].argmax(-1)
        text = torch.cat([text, given], 1)
assert i == 39
"""
_OWN_IN_FULL = """
def write(text, num):
    kept = []
    for i in range(num):
        logits = model(text, use_cache=False).logits[:, -1] / (i + 1)
        token = torch.multinomial(logits.softmax(-1), 1)
        text = torch.cat([text, token], 1)
        kept.append(token)
    assert len(kept) == num
    return text
with torch.inference_mode():
    text = write(ids, 40)
"""

_COUNTED = {
    "a global of a function that is called": (1, """
num = 0
def note():
    global num
    num += 1
def write(text):
    for i in range(40):
        text = add(text)
        note()
write(ids)
assert num == 40, num
"""),
    "a closure": (1, """
def counter():
    num = 0
    def note():
        nonlocal num
        num += 1
        return num
    return note
text, note = ids, counter()
for i in range(40):
    text = add(text)
    note()
assert note() == 41
"""),
    "a class, and an object of it": (1, """
class Writer:
    num = 0
    def __init__(self):
        self.left = 40
    def note(self):
        Writer.num += 1
        self.left -= 1
text, writer = ids, Writer()
for i in range(40):
    text = add(text)
    writer.note()
assert (Writer.num, writer.left) == (40, 0)
"""),
    "a list by two names": (1, """
def one(text, held):
    held.append(text[:, -1:].clone())
    return add(text)
text, kept = ids, []
for i in range(40):
    text = one(text, kept)
assert len(kept) == 40, len(kept)
"""),
    "a shape": (1, """
text = ids
for i in range(40):
    shape, both = text.shape, (i, text.shape[1] * 2)
    text = add(text)
assert (shape, both) == (torch.Size((3, 49)), (39, 98))
"""),
    "a hook": (1, """
num = 0
def note(module, args):
    global num
    num += 1
model.model.layers[0].register_forward_pre_hook(note)
def write(text):
    for i in range(40):
        text = add(text)
write(ids)
assert num == 40, num
"""),
    "what ends a text": (1, """
from transformers import StoppingCriteria, StoppingCriteriaList
class Counts(StoppingCriteria):
    num = 0
    def __init__(self):
        self.own = 0
    def __call__(self, ids, scores, **_):
        Counts.num += 1
        self.own += 1
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
counts = Counts()
model.generate(
    ids, max_new_tokens=40, pad_token_id=0, stopping_criteria=StoppingCriteriaList([counts])
)
assert (Counts.num, counts.own) == (40, 40), (Counts.num, counts.own)
"""),
    "a long loop": (1, """
text = ids
for i in range(40):
    text = add(text)
""" + "".join(f"    x{i} = (i + {i}) * 2 + 1\n" for i in range(60)) + """
assert x1 == 81
"""),
    "loops of every length": (9, """
for num in range(40, 49):
    text = ids
    for i in range(num):
        text = add(text)
    assert text.shape[1] == 10 + num
"""),
    "a time of each": (1, """
import time
text, times = ids, []
for i in range(40):
    start = time.perf_counter()
    text = add(text)
    times.append(time.perf_counter() - start)
assert len(times) == 40
"""),
    "who goes through what it writes": (0, """
def write(text):
    for i in range(40):
        text = add(text)
        yield text
num = 0
for text in write(ids):
    num += 1
assert num == 40, num
"""),
    "an iterator that an object keeps": (0, """
class Feed:
    def __init__(self):
        self.numbers = iter(list(range(100)))
text, feed = ids, Feed()
for i in range(40):
    next(feed.numbers)
    text = add(text)
assert next(feed.numbers) == 40
"""),
    "a number that halves": (0, """
text, heat = ids, 1.0
for i in range(40):
    text = add(text)
    heat *= 0.5
assert heat == 0.5**40
"""),
    "what is drawn": (0, """
import random
random.seed(3)
told = [random.random() for _ in range(41)]
random.seed(3)
text = ids
for i in range(40):
    text = add(text)
    random.random()
assert random.random() == told[40]
"""),
    "a number that is asked for": (2, """
text = ids
for i in range(100):
    text = add(text)
    if i % 10 == 0:
        print(i)
    if i == 60:
        after = torch.zeros(10**6, device="cuda")
assert after.numel() == 10**6
"""),
    "a length that is asked for": (1, """
text = ids
for i in range(100):
    text = add(text)
    if text.shape[1] == 58:
        break
else:
    raise AssertionError
"""),
}  # fmt: skip
"""What a script counts in a loop of its own, with how often rounds of it are left out."""
_ADD = """
@torch.no_grad()
def add(text):
    token = model(text, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
    return torch.cat([text, token], 1)
"""


def _ran(tmp_path, monkeypatch, capsys, script, periods, **limits):
    """Return what a script records, how often it came to its end, and texts were shortened."""
    from brimful.cli.pretend_script import ended_by
    from brimful.pretend import gpu, text_loops
    from brimful.pretend.tape import Tape
    from brimful.pretend.time_limit import Limits

    monkeypatch.setattr(text_loops, "PERIODS", periods)
    path = tmp_path / "write.py"
    path.write_text(script, encoding="utf-8")
    run = gpu("rtx-4090")
    put, times = Tape.put_stretches, []
    counting = lambda *args: (put(*args), times.append(1))  # noqa: E731
    monkeypatch.setattr(Tape, "put_stretches", counting)
    assert ended_by(run, [str(path)], Limits(**limits)) is None
    monkeypatch.setattr(Tape, "put_stretches", put)
    return run, capsys.readouterr().out.count("calls"), len(times)


def _differ(one, other):
    """Name the columns in which two recordings differ, as far as a script runs."""
    columns = ("num_bytes", "born", "in_use_until", "stream")
    named = (
        ("op", "ops"), ("owner", "owners"), ("shape_dtype", "shapes"), ("phase", "phases"),
        ("item", "items"), ("line", "lines"),
    )  # fmt: skip
    if not np.array_equal(*(x.events[: x.born[-1]] for x in (one, other))):
        return ["events"]
    found = [c for c in columns if not np.array_equal(getattr(one, c), getattr(other, c))]
    return found or [
        column
        for column, names in named
        if [getattr(one, names)[i] for i in getattr(one, column)]
        != [getattr(other, names)[i] for i in getattr(other, column)]
    ]


_MODEL = _QWEN.format(name="Qwen2", more="")


@each(
    "script",
    [
        _MODEL + _MASK + _WRITE.format(how="attention_mask=mask"),
        _MODEL
        + _WRITE.format(
            how="do_sample=True, top_k=9, top_p=0.9, return_dict_in_generate=True, "
            "output_scores=True"
        ),
        _MODEL + _WRITE.format(how="cache_implementation='static', disable_compile=True"),
        _T5 + _WRITE.format(how="num_beams=1"),
        _MODEL + _OWN,
        _MODEL + _OWN_IN_FULL,
    ],
)
def test_the_tape_of_a_text_is_that_of_all_its_tokens(script, tmp_path, monkeypatch, capsys):
    script += _AFTER.format(length=41 if "T5" in script else 50)
    whole, _, num_put = _ran(tmp_path, monkeypatch, capsys, script, ())
    assert num_put == 0
    few, num_ends, num_put = _ran(tmp_path, monkeypatch, capsys, script, (8,))
    assert (num_ends, num_put) == (1, 1)
    for where in ("", "cpu"):
        assert not _differ(whole.recording(where), few.recording(where))
    assert whole.peaks_allocated_bytes == few.peaks_allocated_bytes
    for one, other in zip(whole.tape.work, few.tape.work, strict=True):
        assert (one.products, one.moved_bytes) == (other.products, other.moved_bytes)


@each("what", _COUNTED)
def test_what_a_script_counts_is_as_it_would_be(what, tmp_path, monkeypatch, capsys):
    num_left_out, script = _COUNTED[what]
    script = f"{_MODEL}{_ADD}{script}\nprint('calls')\n"
    run, *ended = _ran(tmp_path, monkeypatch, capsys, script, (8,))
    assert (*ended, len(run.peaks_allocated_bytes)) == (1, num_left_out, 1)


def test_a_text_that_outgrows_its_window_is_run_again(tmp_path, monkeypatch, capsys):
    model = _QWEN.format(name="Mistral", more="sliding_window=32")
    script = model + _WRITE.format(how="do_sample=False") + _AFTER.format(length=50)
    whole, *_ = _ran(tmp_path, monkeypatch, capsys, script, ())
    again, num_ends, num_put = _ran(tmp_path, monkeypatch, capsys, script, (8,))
    assert (num_ends, num_put) == (1, 1)
    assert not _differ(whole.recording(), again.recording())
    assert len(again.peaks_allocated_bytes) == 2


def test_a_search_by_beams_writes_a_text_of_full_length(tmp_path, monkeypatch, capsys):
    script = _MODEL + _WRITE.format(how="num_beams=2") + _AFTER.format(length=50)
    _, num_ends, num_put = _ran(tmp_path, monkeypatch, capsys, script, (8,))
    assert (num_ends, num_put) == (1, 0)  # which beam each token came from is known, one by one


def test_a_script_that_is_run_again_makes_its_folders_again(tmp_path, monkeypatch, capsys):
    made = tmp_path / "made"
    script = f"""{_MODEL}{_ADD}
import os
os.makedirs({str(made / "here")!r})
for i in range(40):
    ids = add(ids)
    if sum(ids.shape) > 33:  # which nobody else can ask
        break
os.makedirs({str(made / "there")!r})
try:
    os.mkdir({str(made / "there")!r})
except FileExistsError:
    print("calls")
"""
    run, num_ends, num_put = _ran(tmp_path, monkeypatch, capsys, script, (8,))
    assert (num_ends, num_put) == (2, 1)
    assert len(run.peaks_allocated_bytes) == 2
    (made / "here").rmdir()
    (made / "there").rmdir()
    (made / "there").touch()
    path = tmp_path / "write.py"
    with pytest.raises(AssertionError):
        _ran(tmp_path, monkeypatch, capsys, path.read_text("utf-8"), ())


def test_the_whole_of_a_script_has_every_token(tmp_path, monkeypatch, capsys):
    script = f"{_MODEL}{_ADD}\nfor i in range(40):\n    ids = add(ids)\nprint('calls')"
    *_, num_ends, num_put = _ran(tmp_path, monkeypatch, capsys, script, (8,), is_whole=True)
    assert (num_ends, num_put) == (1, 0)
