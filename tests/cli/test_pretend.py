"""``brimful pretend`` on scripts made for it: what it prints, its exit codes, and bad inputs."""

import json
import pickle
import re
import signal
import sys
from importlib.util import find_spec

import pytest

from brimful.pretend.tape_file import load_recording

pytestmark = pytest.mark.torch

SCRIPT = """
import sys
from importlib.util import find_spec
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(1024, 1024).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(int(sys.argv[1])):
    loss = model(torch.ones(8, 1024, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.1f} on {loss.device.type}")
"""
FAILING = {
    "raises": (
        "import torch\ntorch.ones(1, device='cuda')\n{}['lost']\n",
        "raises.py:3 raised KeyError",
    ),
    "ends": ("import sys\nsys.exit('no data')\n", "ended with: no data"),
    "ends by an error": ("import sys\nsys.exit(ValueError('no data'))\n", "ended with: no data"),
    "ends by a number": ("import sys\nsys.exit(2.5)\n", "ended with: 2.5"),
    "ends by a code": ("import sys\nsys.exit(3)\n", "ended with exit code 3"),
    "host": ("import torch\ntorch.ones(4)\n", "put the model on cuda"),
    "values": (
        "import torch\nx = torch.randn(9, device='cuda')\nprint((x > 0).nonzero())\n",
        r"values.py:3 calls aten.nonzero.default, whose result hangs on values",
    ),
    "compiles": (
        "import torch\ntorch.compile(torch.nn.Linear(1, 1), mode='max-autotune')\n",
        "mode='max-autotune' is not simul",
    ),
    "syntax": ("import torch\nif:\n", "syntax.py:2 raised SyntaxError"),
}


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_runs_as_it_is_and_is_reported(script, brimful):
    said = brimful("pretend", "--gpu", "t4", "-v", "--", script, 2)
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[:2] == ["step 0 loss 0.0 on cuda", "step 1 loss 0.0 on cuda"]
    for part in ("Live bytes over time", "Alive at the peak", "Whose it is", "Largest tensors",
                 "Kept for backward", "Peak of every phase", "host tensors"):  # fmt: skip
        assert part in said.out, part
    assert lines[2].startswith("FITS ")
    assert max(map(len, lines)) <= 100
    assert getattr(sys.modules["__main__"], "__file__", "") != str(script)


def test_a_gpu_that_is_named_behind_a_script_that_reads_no_such_word_is_refused(script, brimful):
    done = brimful("pretend", script, "1", "--gpu", "h200")
    assert (done.code, done.out) == (2, "")
    assert f"brimful pretend --gpu h200 -- {script} 1" in done.err
    assert "stands behind" not in brimful("pretend", "--gpu", "h200", "--", script, "1").err


def test_a_gpu_that_is_named_behind_a_script_that_has_the_word_is_the_scripts(script, brimful):
    script.write_text(SCRIPT + 'print(sys.argv.index("--gpu"))\n')
    done = brimful("pretend", script, "1", "--gpu", "h200")
    assert "--gpu stands behind" in done.err
    assert "H100" in done.out


def test_a_word_may_be_read_by_a_module_beside_the_script(script, brimful, tmp_path):
    (tmp_path / "options.py").write_text("known = ['gpu']\n")
    script.write_text("import options\n" + SCRIPT)
    assert brimful("pretend", script, "1", "--gpu", "h200").code == 0


def test_flags_behind_a_script_that_reads_no_arguments_are_ours(script, brimful):
    text = SCRIPT.replace("import sys\n", "").replace("int(sys.argv[1])", "2")
    script.write_text(text)
    done = brimful("pretend", script, "--gpu", "h200", "--memory-budget=10MiB")
    assert "reads no arguments, is taken as ours" in done.err
    assert "H200" in done.out
    assert "of 10.00 MiB" in done.out
    assert f"{script} on NVIDIA" in " ".join(done.out.split())


def test_what_a_fused_optimizer_spares_is_said_where_the_update_is_the_peak(script, brimful):
    foreach = SCRIPT.replace("8, 1024", "1, 1024")
    said = []
    for name, text in (("foreach", foreach), ("fused", foreach.replace("())", "(), fused=True)"))):
        path = script.with_name(f"{name}.py")
        path.write_text(text)
        said.append(" ".join(brimful("pretend", "--gpu", "t4", "--", path, 2).out.split()))
    assert "first an optimizer of torch.optim with fused=True: at most 4.00 MiB less" in said[0]
    assert "fused=True" not in said[1]
    before, after = (float(re.search(r"peak ([\d.]+) MiB", each)[1]) for each in said)
    assert before - after <= 4.01


def test_json_is_all_that_stands_on_standard_output(script, brimful):
    said = brimful("pretend", "--json", "--kernels", "cpu", "--", script, 2)
    answer = json.loads(said.out)
    assert "step 1 loss" in said.err
    assert answer["schema"] == "brimful.pretend/1"
    assert answer["fits"] is True
    (outside,) = answer["outside"]
    held = answer["simulated_process_bytes"] - answer["reserved"]["simulated_peak_reserved_bytes"]
    assert outside["low_bytes"] < held < outside["high_bytes"]
    weights = 4 * (1024 * 1024 + 1024)
    # Parameters, gradients, two moments, and AdamW's temporaries of the larger tensor.
    assert 4 * weights < answer["simulated_peak_allocated_bytes"] < 6.1 * weights
    assert answer["simulated_peak_allocated_bytes"] == sum(
        item["num_bytes"] for item in answer["items"]
    )


def test_over_budget_is_exit_code_1_and_says_by_whom(script, brimful):
    said = brimful("pretend", "--memory-budget", "8MiB", "--kernels", "cpu", "--", script, 1)
    assert said.code == 1
    answer = said.out[said.out.index("NO ") :]
    assert "of 8.00 MiB, short by" in " ".join(answer.split())
    assert "fails     in load" in answer or "fails     in step 1" in answer
    assert len(answer.splitlines()) <= 12
    assert (
        brimful("pretend", "--memory-budget", "64MiB", "--kernels", "cpu", "--", script, 1).code
        == 0
    )


def test_files_are_written(script, brimful, tmp_path):
    files = ("--snapshot", "s.pickle", "--perfetto", "p.json", "--tape", "t.npz")
    assert brimful("pretend", *files, "--", script, 1).code == 0
    assert pickle.loads((tmp_path / "s.pickle").read_bytes())["segments"]  # noqa: S301 - our own
    assert json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    assert len(load_recording(tmp_path / "t.npz").events) > 10


def test_a_module_runs_like_python_m(script, brimful, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "width.py").write_text("WIDTH = 8\n")
    (tmp_path / "package" / "train.py").write_text(
        "import sys, torch\nfrom package.width import WIDTH\nassert __name__ == '__main__'\n"
        "print(sys.argv[1:], torch.ones(WIDTH, device='cuda').shape)\n"
    )
    said = brimful("pretend", "--", "-m", "package.train", "--flag", "x")
    assert said.code == 0, said.err
    assert said.out.splitlines()[0] == "['--flag', 'x'] torch.Size([8])"
    assert str(tmp_path) not in sys.path
    assert script.exists()


def test_settings_of_the_allocator_come_from_the_environment(script, brimful, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert "expandable_segments:True" in brimful("pretend", "--", script, 1).out
    said = brimful("pretend", "--allocator", "", "--json", "--", script, 1)
    assert json.loads(said.out)["allocator"] == ""


def test_one_process_of_many(script, brimful, tmp_path):
    (tmp_path / "world.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.ones(1024, device=f\"cuda:{os.environ['LOCAL_RANK']}\")\n"
        "dist.all_reduce(x)\n"
        "print(dist.get_rank(), dist.get_world_size())\n"
    )
    said = brimful("pretend", "--world-size", 64, "--rank", 9, "--", "world.py")
    assert (said.code, said.out.splitlines()[0]) == (0, "9 64"), said.err
    assert script.exists()


@pytest.mark.parametrize("name", FAILING)
def test_a_script_that_cannot_go_on_is_exit_code_2(script, brimful, tmp_path, name):
    text, said_so = FAILING[name]
    (tmp_path / f"{name}.py").write_text(text)
    said = brimful("pretend", "--", f"{name}.py")
    assert said.code == 2
    first, *rest = said.err.splitlines()
    assert said_so in first, said.err
    assert first.startswith("brimful: ")
    assert not any(line.startswith("brimful: ") for line in rest)
    assert "brimful/pretend" not in said.err.replace("src/brimful/pretend", "")
    assert script.exists()


KERNEL = """
import torch
import triton

@triton.jit
def nothing(x_ptr):
    pass

nothing[(1,)](torch.ones(4, device="cuda"))
"""


@pytest.mark.skipif(find_spec("triton") is not None, reason="of a machine without triton")
def test_what_is_not_installed_can_be_assumed(script, brimful, tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL)
    said = brimful("pretend", "--", "kernel.py")
    assert said.code == 2
    assert said.err.splitlines()[0].endswith("install triton, or pass --assume triton")
    said = brimful("pretend", "-v", "--assume", "triton", "--", "kernel.py")
    assert said.code == 0, said.err
    assert "nothing (1 launch)" in said.out
    assert "triton is not installed; in its place stands" in " ".join(said.out.split())
    assert script.exists()


def test_deepspeed_that_is_missing_is_told_what_to_do(script, brimful, tmp_path):
    asks = "from importlib import metadata\nmetadata.version('deepspeed')\n"
    (tmp_path / "asks.py").write_text(asks)
    said = brimful("pretend", "--", "asks.py")
    assert said.code == 2
    assert "pip install deepspeed" in said.err.splitlines()[0]
    assert script.exists()


def test_a_script_s_own_traceback_is_of_its_own_lines(script, brimful, tmp_path):
    (tmp_path / "raises.py").write_text(FAILING["raises"][0])
    err = brimful("pretend", "--", "raises.py").err.splitlines()
    assert "any real card would say the same" in err[0]
    assert err[1].startswith("Traceback (most recent call last")
    assert err[2].endswith('raises.py", line 3, in <module>')
    assert err[-2] == "KeyError: 'lost'"
    whole = brimful("pretend", "-v", "--", "raises.py").err.splitlines()
    assert whole[1] == "Traceback (most recent call last):"
    assert whole[2].endswith('raises.py", line 3, in <module>')
    assert script.exists()


VIEWED = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        return y[:, :-1].view(-1)

model = Model().cuda()
model = torch.compile(model) if {} else model
model(torch.ones(4, 9, device="cuda"))
"""


@pytest.mark.parametrize("is_compiled", [False, True])
def test_an_error_of_shapes_is_one_of_any_card_and_names_the_line(
    script, brimful, tmp_path, is_compiled
):
    (tmp_path / "viewed.py").write_text(VIEWED.format(is_compiled))
    first, *rest = brimful("pretend", "--", "viewed.py").err.splitlines()
    assert first.startswith("brimful: viewed.py:7 (forward) raised ")
    assert "; any real card would say the same: write .reshape(...) for .view(...)" in first
    assert len(rest) <= 10
    assert "site-packages" not in "".join(rest)
    assert script.exists()


def test_everything_may_be_taken_as_selected(script, brimful, tmp_path):
    (tmp_path / "values.py").write_text(FAILING["values"][0])
    said = brimful("pretend", "--assume-all-selected", "--", "values.py")
    assert said.code == 0
    assert "selects everything" in said.out
    told = " ".join(said.out.split())
    assert "simulated: selections whole, unknown kernels left out" in told
    assert "at most, at least" not in told
    assert script.exists()


def test_what_values_decide_is_answered_at_most_where_nobody_said_so(script, brimful, tmp_path):
    (tmp_path / "values.py").write_text(FAILING["values"][0])
    said = brimful("pretend", "--", "values.py")
    assert said.code == 2
    assert "whose result hangs on values" in said.err
    told = said.out.partition("instead   the same with --assume-all-selected:")[2]
    assert told.lstrip().startswith("FITS")
    short = brimful("pretend", "--memory-budget", "1KiB", "--", "values.py")
    assert "UNKNOWN" in short.out
    assert "NO " not in short.out
    assert script.exists()


@pytest.mark.parametrize(
    ("argv", "said_so"),
    [
        ((), "no script was named"),
        (("--",), "no script was named"),
        (("--", "absent.py"), "there is no script absent.py"),
        (("--", "-m"), "-m names no module"),
        (("--", "-m", "no.such.module"), "there is no module no.such.module"),
        (("--", "--bf16", "train.py"), "--bf16 is no script"),
        (("--gpu", "h1000", "--", "train.py", "1"), "unknown GPU 'h1000'"),
        (("--memory-budget", "much", "--", "train.py", "1"), "--memory-budget"),
        (("--memory-budget", "0", "--", "train.py", "1"), "leaves nothing"),
        (("--world-size", "0", "--", "train.py", "1"), "--world-size 0 is too few"),
        (("--rank", "1", "--", "train.py", "1"), "rank 1 is not in a world of 1"),
        (("--assume", "xformers", "--", "train.py", "1"), "xformers cannot be assumed"),
        (("--kernels", "rocm", "--", "train.py", "1"), "rocm"),
        (("--allocator", "segments:True", "--", "train.py", "1"), "segments"),
        (("--snapshot", "s.txt", "--", "train.py", "1"), "must end in .pickle or .pkl"),
        (("--tape", "train.py/t.npz", "--", "train.py", "1"), "train.py/t.npz"),
    ],
)  # fmt: skip
def test_bad_inputs_are_one_sentence(script, brimful, argv, said_so):
    said = brimful("pretend", *argv)
    assert said.code == 2
    last = said.err.splitlines()[-1]
    assert last.startswith("brimful: ")
    assert said_so in last
    assert script.exists()


WIDE = """
import sys
from importlib.util import find_spec
import torch

width = int(sys.argv[2])
model = torch.nn.Linear(width, width, device="cuda")
print("made", width)
"""


def test_the_largest_size_that_fits_is_found_by_running_again(tmp_path, brimful):
    script = tmp_path / "wide.py"
    script.write_text(WIDE)
    asked = ("pretend", "--gpu", "t4", "--memory-budget", "100MiB")
    said = brimful(*asked, "--largest", "width", "--", script, "--width", 8192)
    assert said.code == 0
    assert said.out.count("made") == 1, "what later runs print is dropped"
    value = int(re.search(r"largest   --width (\d+) fits", said.out)[1])
    assert f"--width {value} on" in " ".join(said.out.split())
    made = json.loads(
        brimful(*asked, "--json", "--largest", "width", "--", script, "--width", 8192).out
    )
    assert made["largest"]["value"] == value
    assert made["fits"]
    assert brimful(*asked, "--", script, "--width", value).code == 0
    assert brimful(*asked, "--", script, "--width", value + 256).code == 1


CONVOLVED = """
import sys
import torch

width = int(sys.argv[2])
conv = torch.nn.Conv2d(3, 8, 3, padding=1).cuda()
conv(torch.zeros(1, 3, width, width, device="cuda")).sum().backward()
"""


def test_the_largest_size_is_sure_of_nothing_where_kernels_are_unknown(tmp_path, brimful):
    (script := tmp_path / "convolved.py").write_text(CONVOLVED)
    asked = ("pretend", "--gpu", "t4", "--memory-budget", "3GiB", "--largest", "width")
    said = brimful(*asked, "--", script, "--width", 8192)
    assert re.search(r"--width \d+ fits as far as kernels are known", said.out)
    assert "surely" not in said.out


OWN = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=80000)
size = parser.parse_args().batch_size
model = torch.nn.Linear(size, size, device="cuda")
"""


def test_sizes_that_are_left_to_the_script_are_named_too(tmp_path, brimful):
    script = tmp_path / "own.py"
    script.write_text(OWN)
    said = brimful("pretend", "--gpu", "t4", "--", script)
    assert "sizes     --largest batch-size before -- finds the largest batch-size" in said.out


def test_what_ends_a_script_behind_what_no_card_holds_ends_no_answer(tmp_path, brimful):
    script = tmp_path / "ends.py"
    script.write_text(
        "import sys\nimport torch\nx = torch.zeros(int(sys.argv[1]) << 30, device='cuda')\n"
        "{}['lost']\n"
    )
    said = brimful("pretend", "--gpus", "t4", "--", script, 9)
    assert said.code == 1
    assert "ends.py:4 raised KeyError" in said.err
    assert "before that it asked for more than the card holds" in said.err
    assert "memory    ██████████▶ 36.00 GiB" in said.out
    assert brimful("pretend", "--gpu", "t4", "--", script, 1).code == 2


def test_the_memory_of_the_host_is_not_the_cards(tmp_path, brimful):
    script = tmp_path / "host.py"
    script.write_text(
        # More than a process has addresses for, however its host overcommits.
        "import torch\ntorch.zeros(1 << 46, device='cuda').cpu().numpy().copy()\n"
    )
    said = brimful("pretend", "--gpu", "t4", "--", script)
    assert said.code == 1
    assert "it is the memory of this machine's host that is short, not the card's" in said.err
    assert "what follows was not run here" in said.err
    assert "Traceback" not in said.err


def test_an_array_of_what_the_gpu_computes_takes_no_memory_of_this_machine(tmp_path, brimful):
    """As that of all logits of an evaluation: here of 64 GiB."""
    script = tmp_path / "host.py"
    script.write_text(
        "import torch\nx = torch.zeros(1 << 34, device='cuda').cpu().numpy()\n"
        "assert x.shape == (1 << 34,) and x[-1] == 0\n"
    )
    assert brimful("pretend", "--gpu", "b300", "--", script).code == 0


GATHERS = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(32000, 8), torch.nn.Linear(8, 32000)

    def forward(self, ids):
        return self.head(self.words(ids))

model = Model().cuda()
every = None
with torch.no_grad():
    for _ in range(8):
        logits = model(torch.zeros(8, 1024, dtype=torch.int64, device="cuda"))
        every = logits if every is None else torch.cat((every, logits))
"""


def test_of_gathered_logits_fewer_rows_at_once_are_no_help(tmp_path, brimful):
    script = tmp_path / "gathers.py"
    script.write_text(GATHERS)
    told = " ".join(brimful("pretend", "--gpu", "t4", "--", script).out.split())
    assert "change logits of an evaluation" in told
    assert "fewer rows" not in told
    assert "eval_accumulation_steps), which takes 7.81 GiB" in told


def test_what_loading_lacks_is_fewer_bits_or_its_part_alone(tmp_path, brimful):
    script = tmp_path / "loads.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Sequential(*[torch.nn.Linear(2**15, 2**15, device='cuda') "
        "for _ in range(8)])\n"
    )
    told = " ".join(brimful("pretend", "--gpu", "t4", "--", script).out.split())
    assert "peak 32.00 GiB of tensors in load" in told
    assert "change in 16 bits 16.00 GiB less; of several GPUs" in told
    assert "meta device" in told


GROWS = """
import sys
import torch

batch = int(sys.argv[2])
model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device="cuda") for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.ones(batch, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_how_much_of_a_batch_would_fit_is_told_by_proportion(tmp_path, brimful):
    script = tmp_path / "x.py"
    script.write_text(GROWS)
    rows = 2**17
    told = " ".join(
        brimful("pretend", "--gpu", "t4", "--", script, "--batch-size", rows).out.split()
    )
    assert "LoRA 1.50 GiB; checkpointing 14.00 GiB (may do); a smaller batch" in told
    num = int(re.search(r"sizes about batch-size (\d+)", told)[1])
    assert 1 < num < rows
    assert brimful("pretend", "--gpu", "t4", "--", script, "--batch-size", num * 9 // 10).code == 0
    assert brimful("pretend", "--gpu", "t4", "--", script, "--batch-size", num * 13 // 10).code == 1


def test_a_no_names_the_smallest_gpu_and_how_sizes_are_found(tmp_path, brimful):
    script = tmp_path / "wide.py"
    script.write_text(WIDE)
    said = brimful("pretend", "--gpu", "t4", "--", script, "--width", 80000)
    assert "sizes     --largest width before -- finds the largest width that fits" in said.out
    assert "tensors   23.84 GiB in 1 x [80000, 80000] float32" in said.out
    name = re.search(r"instead   --gpu (\S+) would hold it", said.out)[1]
    assert brimful("pretend", "--gpu", name, "--", script, "--width", 80000).code == 0


def test_a_no_names_states_that_no_batch_makes_fit_and_what_each_change_saves(script, brimful):
    """Of 4 GB, four in fp32 are 16 on a T4: parameters, gradients and two moments of AdamW."""
    script.write_text(SCRIPT.replace("1024, 1024", "32768, 32768").replace("8, 1024", "8, 32768"))
    told = " ".join(brimful("pretend", "--gpu", "t4", "--", script, 2).out.split())
    states = "parameters 4.00 GiB, gradients 4.00 GiB and optimizer state 8.00 GiB alone are 16.00"
    assert f"no batch fits: {states} GiB of 13.9" in told
    assert "; with 8-bit moments 10.00 GiB" in told
    assert re.search(r"change 8-bit moments (\(.*?\) )?6.00 GiB; LoRA", told)
    assert re.search(r"LoRA (\(.*?\) )?12.00 GiB", told)
    assert told.index("change ") < told.index("instead --gpu ")


def test_what_trains_nothing_is_offered_no_change_of_an_optimizer(tmp_path, brimful):
    script = tmp_path / "wide.py"
    script.write_text(WIDE)
    said = brimful("pretend", "--gpu", "t4", "--", script, "--width", 80000)
    assert "no batch" not in said.out
    assert "8-bit" not in said.out


def test_a_script_of_another_framework_is_told_so_in_a_sentence(script, brimful):
    if find_spec("jax"):
        pytest.skip("jax is installed here")
    script.write_text("import jax\nimport jax.numpy as jnp\n")
    said = brimful("pretend", "--gpu", "l4", "--", script)
    assert (said.code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 1
    assert "imports jax, and brimful pretend covers PyTorch alone" in said.err


def test_each_value_that_was_tried_is_said_at_once(tmp_path, brimful):
    (script := tmp_path / "wide.py").write_text(WIDE)
    asked = ("pretend", "--gpu", "t4", "--memory-budget", "100MiB", "--largest", "width")
    said = brimful(*asked, "--", script, "--width", 8192)
    lines = [line for line in said.err.splitlines() if line.startswith("--width ")]
    assert lines[0].startswith("--width 8192: NO, ")
    assert len(lines) <= 5
    assert any(": FITS, " in line for line in lines)


STOPPED = (
    WIDE
    + """
from pathlib import Path
(runs := Path(f"ran-{len(list(Path().glob('ran-*')))}")).touch()
if runs.name == "ran-2":
    raise KeyboardInterrupt
"""
)


def test_the_best_so_far_is_said_where_a_search_is_interrupted(tmp_path, brimful, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (script := tmp_path / "stopped.py").write_text(STOPPED)
    asked = ("pretend", "--gpu", "t4", "--memory-budget", "100MiB", "--largest", "width")
    said = brimful(*asked, "--", script, "--width", 1024)
    assert said.code == 130
    assert "interrupted: the best so far" in " ".join(said.out.split())
    assert "FITS" in said.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_script_that_takes_an_interrupt_for_its_own_is_interrupted(tmp_path, brimful, number):
    (script := tmp_path / "catching.py").write_text(CATCHING.replace("NUMBER", str(int(number))))
    asked = ("pretend", "--gpu", "t4", "--memory-budget", "100MiB", "--largest", "width")
    said = brimful(*asked, "--", script, "--width", 1024)
    assert said.code == 130
    assert "--width 1024 fits; found in 0 more runs, interrupted" in " ".join(said.out.split())


CATCHING = """
import os
import sys
import torch

try:
    if sys.argv[2] != "1024":
        os.kill(os.getpid(), NUMBER)
    torch.nn.Linear(int(sys.argv[2]), 64).cuda()
except KeyboardInterrupt:
    print("saved")
"""


BATCHED = """
import sys
import torch

model = torch.nn.Linear(32768, 32768).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(int(sys.argv[2]), 32768, device="cuda")).square().mean().backward()
optimizer.step()
"""


def test_only_the_least_is_tried_where_states_alone_have_no_room(tmp_path, brimful):
    (script := tmp_path / "batched.py").write_text(BATCHED)
    said = brimful("pretend", "--gpu", "t4", "--largest", "batch", "--", script, "--batch", "64")
    told = " ".join(said.out.split())
    assert said.code == 1
    assert "no --batch fits: even 2 needs 20." in told
    assert "found in 1 more run " in told
    assert "alone are 16.00 GiB" in told


NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# A notebook"]},
        {"cell_type": "code", "source": ["import torch\n", "x = torch.ones(4, 9).cuda()"]},
        {"cell_type": "code", "source": ["def viewed(y):\n", "    return {}\n", "viewed(x)"]},
    ]
}


def test_an_error_in_a_notebook_names_its_cell(tmp_path, brimful):
    (notebook := tmp_path / "n.ipynb").write_text(
        json.dumps(NOTEBOOK).replace("{}", "y[:, 1:].view(-1)")
    )
    first, *rest = brimful("pretend", "--", notebook).err.splitlines()
    assert first.startswith("brimful: n.ipynb, code cell 2, line 2 (viewed) raised ")
    assert "    return y[:, 1:].view(-1)" in rest
    assert "cells.py" not in "".join(rest)


def test_a_tensor_of_a_notebook_is_one_of_its_cell(tmp_path, brimful):
    (notebook := tmp_path / "n.ipynb").write_text(json.dumps(NOTEBOOK).replace("{}", "y.exp()"))
    said = brimful("pretend", "-v", "--", notebook)
    assert "(n.ipynb, code cell 1, line 2)" in " ".join(said.out.split())
