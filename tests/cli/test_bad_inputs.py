"""Whatever is wrong with what the user gave: one line that says it and how to mend it, exit 2."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml
from tests.cli.conftest import CONFIG, TINY

LOCAL = ("--gpus", "a100-40gb")
H100S = ("tinyllama-1.1b", "--gpus", "8xh100-80gb")
TRAIN = ("train", "plan.yaml", "--out", "run", "--data")


def files_in(folder):
    paths = (path for path in folder.rglob("*") if path.is_file() and "cache" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def check(said, *facts):
    assert said.code == 2
    first = said.out.partition(" ")[0]
    assert first in {"", "model", "instead"}, "train says what it trains, others what they answer"
    assert said.err.startswith("brimful: ")
    assert first == "instead" or said.err.count("\n") == 1
    assert said.err.endswith("\n")
    missing = [fact for fact in facts if fact not in said.err]
    assert not missing, said.err


ONE_GPU = ("estimate", "tinyllama-1.1b", *LOCAL)
FLAGS = [
    (("estmate", "x"), ("'estmate'", "estimate")),
    (("estimate",), ("no MODEL", "brimful models", "--from")),
    (("estimate", "tinylama-1.1b"), ("'tinylama-1.1b'", "tinyllama-1.1b", "config.json")),
    (("estimate", ""), ("unknown model ''", "brimful models")),
    (("estimate", "m" * 300), ("too long",)),
    (("estimate", "two\nlines"), ("which no name has", "one line")),
    (("estimate", "tinyllama-1.1b", "--gpus", "a100-4gb"), ("'a100-4gb'", "a100-40gb")),
    (
        ("train", "tinyllama-1.1b", "--gpus", "8xh100-80gb", "--data", "x.txt", "--out", "o"),
        ("CUDA GPU", "this machine has none", "--gpus local"),
    ),
    (("estimate", *H100S, "--tp", "8"), ("tp=8", "num_kv_heads=4", "use 1, 2, 4")),
    (
        ("estimate", *H100S, "--tp", "4", "--attention", "eager", "--json"),
        ("tp=4", "use --attention sdpa"),
    ),
    (
        ("plan", *H100S, "--pp", "1", "--pp-schedule", "gpipe"),
        ("pp_schedule=gpipe", "pp=1 has none"),
    ),
    (
        ("simulate", "tinyllama-1.1b", "--gpus", "32xh100-80gb", "--pp", "32"),
        ("32 stages", "more than the 22 blocks"),
    ),
    (("simulate", *H100S, "--pp", "8", "--pp-schedule", "zbv"), ("needs 16", "there are 8")),
    (("simulate", *H100S, "--stages-per-device", "2"), ("pp=1 has none",)),
    (("estimate", *H100S, "--zero", "4"), ("--zero 4", "0, 1, 2 or 3")),
    (("estimate", *H100S, "--dp-shard", "3"), ("is 6", "8 devices", "make them equal")),
    (("estimate", *H100S, "--zero", "0", "--dp-shard", "8"), ("dp_replicate=8", "is 64")),
    (("estimate", *H100S, "--zero", "3", "--dp-replicate", "8"), ("zero=3", "dp_shard=1")),
    (("plan", *H100S, "--tp", "1", "--global-batch", "12"), ("global_batch=12", "a multiple of 8")),
    (("estimate", *H100S, "--network", "ib"), ("'ib'", "did you mean")),
    (("estimate", "tinyllama-1.1b", "--gpus", "0xh100-80gb"), ("0 devices", "1xh100-80gb")),
    ((*ONE_GPU, "--precision", "bf16-mixd"), ("'bf16-mixd'", "bf16-mixed")),
    ((*ONE_GPU, "--attention", "sdap"), ("'sdap'", "did you mean sdpa")),
    ((*ONE_GPU, "--task", "causal"), ("'causal'", "causal-lm")),
    ((*ONE_GPU, "--dpo-beta", "0.2"), ("--dpo-beta 0.2", "use --task dpo")),
    ((*ONE_GPU, "--reference", "resident"), ("reference=resident", "leave it out")),
    ((*ONE_GPU, "--reference", "resdent"), ("'resdent'", "did you mean resident")),
    ((*ONE_GPU, "--task", "dpo", "--dpo-beta", "0"), ("beta=0.0", "more than 0")),
    ((*ONE_GPU, "--task", "dpo", "--reference", "adapters-off"), ("method=full", "resident")),
    (("plan", *H100S, "--task", "dpo", "--tp", "2"), ("task=dpo", "tp=2", "use tp=1")),
    ((*ONE_GPU, "--mirco-bacth", "2"), ("--mirco-bacth", "did you mean --micro-batch")),
    ((*ONE_GPU, "--micro", "2"), ("--micro 2", "did you mean --micro-batch")),
    ((*ONE_GPU, "extra"), ("extra", "--help")),
    ((*ONE_GPU, "--seq-len"), ("--seq-len", "--help")),
    ((*ONE_GPU, "--seq-len", "4096"), ("4096", "2048", "use 2048 or less")),
    ((*ONE_GPU, "--seq-len", "0"), ("--seq-len 0", "1 or more")),
    ((*ONE_GPU, "--seq-len", "-5"), ("--seq-len '-5'", "write it like")),
    ((*ONE_GPU, "--seq-len", "abc"), ("--seq-len 'abc'", "write it like")),
    ((*ONE_GPU, "--seq-len", "1.5"), ("--seq-len '1.5'", "whole number")),
    ((*ONE_GPU, "--seq-len", "1e30"), ("out of range", "1 to 1000000000")),
    ((*ONE_GPU, "--seq-len", "1e400"), ("--seq-len '1e400'", "write it like")),
    ((*ONE_GPU, "--micro-batch", "1e9"), ("1000000000 x seq_len=2048", "EiB", "lower")),
    ((*ONE_GPU, "--micro-batch", "0"), ("--micro-batch 0", "1 or more")),
    (
        (*ONE_GPU, "--global-batch", "6", "--micro-batch", "4"),
        ("micro_batch=4", "global_batch=6", "1, 2, 3, 6"),
    ),
    (("plan", *ONE_GPU[1:], "--loss-chunks", "0"), ("--loss-chunks 0", "1 or more")),
    (("plan", *ONE_GPU[1:], "--loss-chunks", "1M"), ("loss_chunks=1000000", "1 to 2048")),
    (("plan", *ONE_GPU[1:], "--objective", "speed"), ("'speed'", "time")),
    ((*ONE_GPU, "--ac", "full:23"), ("23 blocks", "22", "full:22 or less")),
    ((*ONE_GPU, "--ac", "full:x"), ("'full:x'", "none, full, full:K")),
    ((*ONE_GPU, "--ac", ""), ("''", "none, full, full:K")),
    ((*ONE_GPU, "--learning-rate", "fast"), ("--learning-rate 'fast'", "3e-4")),
    ((*ONE_GPU, "--learning-rate", "nan"), ("learning_rate=nan", "give 0 to")),
    ((*ONE_GPU, "--clip", "-1"), ("clip=-1.0", "give 0 to")),
    ((*ONE_GPU, "--seed", "1e30"), ("seed=", "out of range")),
    ((*ONE_GPU, "--warmup-steps", "200"), ("warmup_steps=200", "num_steps=100")),
    ((*ONE_GPU, "--steps", "10", "--tokens", "1M"), ("10", "1000000", "give one")),
    ((*ONE_GPU, "--memory-limit", "0"), ("0 bytes", "39.38 GiB", "more than 0")),
    ((*ONE_GPU, "--memory-limit", "1TiB"), ("1.00 TiB", "39.38 GiB", "or less")),
    ((*ONE_GPU, "--memory-limit", "lots"), ("--memory-limit 'lots'", "1.5GiB")),
    ((*ONE_GPU, "--memory-limit", "170%"), ("--memory-limit '170%'", "70%")),
    ((*ONE_GPU, "--memory-limit", "1e400"), ("--memory-limit '1e400'", "1.5GiB")),
    (("profile",), ("--all",)),
]


@pytest.mark.parametrize(("argv", "facts"), FLAGS, ids=[" ".join(a)[:60] for a, _ in FLAGS])
def test_flags(brimful, folder, argv, facts):
    before = files_in(folder)
    check(brimful(*argv), *facts)
    assert files_in(folder) == before


def without(field):
    return {name: value for name, value in CONFIG.items() if name != field}


CONFIGS = {
    "broken": (b'{"a": 1,\n nope}', ("is not JSON", "line 2")),
    "truncated": (json.dumps(CONFIG).encode()[:90], ("is not JSON", "line 1")),
    "empty": (b"", ("is not JSON", "line 1")),
    "not an object": (b"[1]", ("holds a list",)),
    "not UTF-8": (b'{"caf\xe9": 1}', ("is not UTF-8", "byte 5")),
    "too deep": (b"[" * 100_000, ("is not a config.json",)),
    "too many digits": (b'{"a": ' + b"1" * 5000 + b"}", ("is not a config.json",)),
    "unknown architecture": ({"model_type": "perceiver"}, ("perceiver", "num_hidden_layers")),
    "misspelt architecture": ({"model_type": "lama"}, ("'lama'", "did you mean llama?")),
    "architecture of the wrong type": ({"model_type": ["llama"]}, ("['llama']",)),
    "no architecture": ({"a": 1}, ("lacks model_type",)),
    "missing field": (without("vocab_size"), ("lacks vocab_size", "add it")),
    "odd head": ({**CONFIG, "head_dim": 7}, ("head_dim=7", "even")),
    "heads that do not divide": ({**CONFIG, "num_attention_heads": 5}, ("=5", "=32")),
    "groups that do not divide": ({**CONFIG, "num_key_value_heads": 3}, ("=3", "=4")),
    "switch that is no switch": (
        {**CONFIG, "tie_word_embeddings": "no"},
        ("'no'", "true or false"),
    ),
    "bias that is no switch": ({**CONFIG, "attention_bias": [1]}, ("attention_bias=[1]",)),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_config(brimful, folder, case):
    content, facts = CONFIGS[case]
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "bad.json").write_bytes(raw)
    check(brimful("estimate", "bad.json", *LOCAL), "bad.json", *facts)
    assert (folder / "bad.json").read_bytes() == raw


SIZES = [
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings"),
    "sliding_window",
]


@pytest.mark.parametrize("field", SIZES)
@pytest.mark.parametrize("value", [0, -1, 10**12, 1.5, True, "x", [1], {}])
def test_a_size_is_a_whole_number(brimful, folder, field, value):
    (folder / "bad.json").write_text(json.dumps({**CONFIG, field: value}))
    check(brimful("estimate", "bad.json", *LOCAL), f"{field}={value!r}", "a whole number from 1 to")


@pytest.mark.parametrize(
    "field", [f for f in SIZES if f not in {"num_key_value_heads", "head_dim", "sliding_window"}]
)
def test_a_size_is_not_null(brimful, folder, field):
    (folder / "bad.json").write_text(json.dumps({**CONFIG, field: None}))
    check(brimful("estimate", "bad.json", *LOCAL), f"{field}=None", "a whole number from 1 to")


def test_folders_without_a_config(brimful, folder):
    (folder / "bare").mkdir()
    (folder / "odd" / "config.json").mkdir(parents=True)
    check(brimful("estimate", "bare"), "no config.json", "bare")
    check(brimful("estimate", "gone/model"), "no config.json", "gone/model", "path of its config")
    check(brimful("estimate", "odd"), "odd/config.json is no file")


@pytest.mark.torch
def test_a_profile_that_nobody_traces(brimful):
    check(brimful("profile", "llama.hf.bf16-mixed.sdpa.tpu"), "sdpa.tpu", "did you mean", "sdpa.c")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("field", "value"),
    [("rope_parameters", 3), ("rms_norm_eps", "x"), ("pad_token_id", 10**6)],
)
def test_what_only_transformers_refuses(brimful, folder, field, value):
    (folder / "bad.json").write_text(json.dumps({**CONFIG, field: value}))
    said = brimful("simulate", "bad.json", *TINY[1:])
    check(said, "transformers cannot build bad.json", "mend that field")


EDITS = [
    ("foo", 1, ("'foo'",)),
    ("job.seqlen", 1, ("job has no field 'seqlen'", "did you mean seq_len?")),
    ("job.model.hiden_size", 1, ("job.model", "'hiden_size'", "did you mean hidden_size?")),
    ("estimate.items.0.nam", 1, ("estimate.items[0]", "'nam'", "did you mean name?")),
    ("job.seq_len", "x", ("job.seq_len is text", "a whole number")),
    ("job.seq_len", 1.5, ("job.seq_len is a number", "a whole number")),
    ("job.seq_len", None, ("job.seq_len is nothing", "a whole number")),
    ("job.model", [1], ("job.model is a list", "a mapping")),
    ("job.precision", "bf16-mixd", ("job.precision is 'bf16-mixd'", "did you mean bf16-mixed?")),
    ("strategy.attention", "flsh", ("strategy.attention is 'flsh'", "flash")),
    ("job", KeyError, ("lacks the field 'job'",)),
    ("job.seq_len", KeyError, ("job lacks the field 'seq_len'",)),
    ("schema", KeyError, ("lacks the field 'schema'",)),
    ("schema", "brimful.plan/9", ("'brimful.plan/9'", "'brimful.plan/2'", "plan again")),
    ("strategy.micro_batch", 3, ("micro_batch=3", "global_batch=4", "1, 2, 4")),
    ("strategy.micro_batch", 0, ("micro_batch=0", "global_batch=4")),
    ("strategy.activation_checkpointing", "full:9", ("9 blocks", "3", "full:3 or less")),
    ("job.seq_len", 10**6, ("1000000", "512", "use 512 or less")),
    ("job.seed", -5, ("seed=-5", "give 0 to")),
    ("job.model.num_layers", 0, ("model.num_layers=0", "(3)", "change both")),
    ("job.model.hf_config", {}, ("lacks hidden_size",)),
    ("job.model.hf_config", {1: 2}, ("job.model.hf_config", "not text")),
    ("cluster.num_devices", 8, ("num_devices=8", "give 1 or more of each")),
    ("cluster.device.usable_bytes", 0, ("usable_bytes=0", "more than 0")),
    ("cluster.device.memory_bytes_per_s", -1, ("-1.0", "give 0")),
    ("cluster.device.kernels", "rocm", ("'rocm'", "cpu or cuda")),
]


def edited(plan, path, value):
    *parents, last = path.split(".")
    place = plan
    for step in parents:
        place = place[int(step) if step.isdigit() else step]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return yaml.safe_dump(plan, sort_keys=False)


@pytest.mark.parametrize(("path", "value", "facts"), EDITS, ids=[f"{p}={v}" for p, v, _ in EDITS])
def test_edited_plan(brimful, folder, plan, path, value, facts):  # noqa: PLR0913, PLR0917
    (folder / "edited.yaml").write_text(edited(plan, path, value))
    before = files_in(folder)
    check(brimful("estimate", "edited.yaml"), "edited.yaml", *facts)
    check(brimful("train", "edited.yaml", "--data", "data.txt", "--out", "run"), *facts)
    assert files_in(folder) == before


PLAN_FILES = {
    "empty": (b"", ("is empty",)),
    "not YAML": (b"a: [1,\nb: {", ("is not YAML", "line 2")),
    "binary": (bytes(range(256)), ("is not UTF-8", "byte 128")),
    "control characters": (b"a: \x00", ("is not YAML",)),
    "a list": (b"- 1\n", ("a list", "a mapping")),
    "prose": (b"hello", ("text", "a mapping")),
    "a key twice": (b"schema: 1\nschema: 2\n", ("'schema' is given twice", "line 2")),
    "a date that never was": (b"schema: 2024-99-99", ("is not a plan",)),
    "too many digits": (b"a: " + b"1" * 5000, ("is not a plan",)),
    "a list for a key": (b"? [1]\n: 2\n", ("is not a plan",)),
}


@pytest.mark.parametrize("case", PLAN_FILES)
def test_a_file_that_is_no_plan(brimful, folder, case):
    content, facts = PLAN_FILES[case]
    (folder / "bad.yaml").write_bytes(content)
    check(brimful("simulate", "bad.yaml"), "bad.yaml", *facts)


def test_plans_that_cannot_be_read(brimful, folder):
    (folder / "dir.yaml").mkdir()
    check(brimful("simulate", "dir.yaml"), "dir.yaml cannot be read", "directory")
    check(brimful("simulate", "gone.yaml"), "gone.yaml cannot be read", "check the path")


@pytest.mark.usefixtures("plan")
def test_flags_beside_a_plan(brimful):
    check(brimful("simulate", "plan.yaml", "--precision", "fp32"), "--precision", "plan.yaml")
    check(brimful("estimate", "plan.yaml", "--gpus", "t4"), "--gpus", "plan.yaml")
    check(brimful("plan", "plan.yaml"), "already is a plan")


@pytest.mark.parametrize(
    ("path", "facts"),
    [
        ("/proc/gone/plan.yaml", ("cannot be written", "-o")),
        ("tiny.json/plan.yaml", ("cannot be written",)),
        ("plan.txt", ("plan.txt", ".yaml")),
        ("", ("''",)),
    ],
)
def test_places_that_cannot_be_written(brimful, folder, path, facts):
    before = files_in(folder)
    check(brimful("plan", *TINY, "-o", path), *facts)
    assert files_in(folder) == before


def test_a_folder_is_not_replaced_by_a_plan(brimful, folder):
    (folder / "dir.yaml").mkdir()
    check(brimful("plan", *TINY, "-o", "dir.yaml"), "-o dir.yaml is a folder; give the name")


def test_exponents_and_links_in_a_plan(brimful, folder, plan):
    text = (folder / "plan.yaml").read_text()
    (folder / "link.yaml").symlink_to("plan.yaml")
    (folder / "plan.yaml").write_text(text.replace("learning_rate: 0.0003", "learning_rate: 3e-4"))
    assert brimful("estimate", "link.yaml").code == 0
    assert brimful("plan", *TINY, "-o", "link.yaml").code == 0
    assert (folder / "link.yaml").is_symlink()
    assert plan["cluster"]["name"] != yaml.safe_load((folder / "plan.yaml").read_text())["cluster"]


@pytest.mark.torch
@pytest.mark.usefixtures("plan")
def test_train(brimful, folder):
    (folder / "empty.txt").write_text("")
    (folder / "latin.txt").write_bytes(b"caf\xe9 " * 1000)
    (folder / "short.txt").write_text("hello world")
    (folder / "bare").mkdir()
    check(brimful("train", "plan.yaml", "--out", "run"), "--data", "stdlib")
    check(brimful("train", "plan.yaml", "--data", "data.txt"), "--out")
    check(brimful("train", "tiny.json", "--out", "run", "--data", "x"), "--data x does not exist")
    check(brimful("train", "gone.yaml", "--out", "run", "--data", "data.txt"), "gone.yaml")
    check(brimful(*TRAIN, "gone.txt"), "gone.txt does not exist")
    check(brimful(*TRAIN, ""), "--data ''")
    check(brimful(*TRAIN, "data.txt", "--resume"), "holds no run")
    check(brimful(*TRAIN, "data.txt", "--eval-every", "0"), "--eval-every 0", "1 or more")
    assert not (folder / "run").exists()
    check(brimful(*TRAIN, "empty.txt"), "empty.txt is empty")
    check(brimful(*TRAIN, "latin.txt"), "latin.txt is not UTF-8", "byte 3")
    check(brimful(*TRAIN, "short.txt"), "11 tokens", "needs 129")
    check(brimful(*TRAIN, "bare"), "bare holds no file", "text or records")
    assert {path.name for path in (folder / "run").iterdir()} == {"plan.yaml"}
    check(brimful("train", "plan.yaml", "--data", "data.txt", "--out", "data.txt"), "data.txt")
    check(brimful("train", "plan.yaml", "--data", "data.txt", "--out", "/proc/gone"), "--out")


@pytest.mark.torch
def test_a_run_that_is_there(brimful, folder, plan):
    assert brimful(*TRAIN, "data.txt").code == 0
    (folder / "other.yaml").write_text(edited(plan, "job.seed", 1))
    before = files_in(folder)
    check(brimful(*TRAIN, "data.txt"), "run is not empty", "--resume")
    other = ("train", "other.yaml", "--out", "run", "--data", "data.txt", "--resume")
    check(brimful(*other), "job.seed=0", "now says 1", "another --out")
    check_report(brimful, folder / "run")
    assert files_in(folder) == before


def check_report(brimful, run):
    curve = (run / "metrics.jsonl").read_bytes()
    for content, facts in (
        (curve + b"nope\n", ("is no row",)),
        (b"\xff\n" + curve, ("line 1", "is no row")),
        (curve.replace(b'"loss"', b'"los"', 1), ("line 1", "'los'", "did you mean loss?")),
        (curve.replace(b'"step":1', b'"step":"x"', 1), ("line 1", "step is text")),
    ):
        (run / "metrics.jsonl").write_bytes(content)
        check(brimful("report", run), "metrics.jsonl", *facts)
    (run / "metrics.jsonl").write_bytes(curve)
    for content, facts in (
        (b"{", ("is not JSON", "brimful simulate")),
        (b"[1]", ("a list", "a mapping")),
        (b"{}", ("'schema'",)),
        (b"\xff", ("is not UTF-8",)),
    ):
        (run / "simulation.json").write_bytes(content)
        check(brimful("report", run), "simulation.json", *facts)
    (run / "simulation.json").unlink()


def test_reports_of_nothing(brimful, folder):
    (folder / "bare").mkdir()
    check(brimful("report", "gone"), "no run folder at gone", "--out")
    check(brimful("report", "bare"), "bare holds no plan.yaml", "--out")
    check(brimful("report", "data.txt"), "no run folder at data.txt")


PATIENCE_S = 600
"""For what hangs, on a machine that is busy with other things too."""


def start(*argv, **options):
    command = [sys.executable, "-m", "brimful", *map(str, argv)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.mark.parametrize(
    "argv",
    [("estmate",), ("estimate", "xyzzy"), ("estimate", "gpt2", "--memory-limit", "lots")],
)
def test_in_a_process_of_its_own(folder, argv):
    process = start(*argv, cwd=folder)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("brimful: ")
    assert err.count("\n") == 1


def test_no_verb_shows_the_usage():
    process = start()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("usage: brimful VERB")


def test_a_full_disk_keeps_the_old_plan(folder):
    (folder / "plan.yaml").write_text("the old one")
    before = files_in(folder)

    def allow_little():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    # Files only: a pipe has no size limit.
    process = start(
        "plan",
        *TINY,
        "-o",
        "plan.yaml",
        cwd=folder,
        preexec_fn=allow_little,
        # Python would cut what it compiles to that size, and others would read it.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (2, "")
    assert (
        err == "brimful: plan.yaml cannot be written (File too large); give another --out or -o\n"
    )
    assert files_in(folder) == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")  # noqa: PTH110
def test_a_device_is_written_to_and_never_replaced(brimful, folder):
    (folder / "full.yaml").symlink_to("/dev/full")
    check(brimful("plan", *TINY, "-o", "full.yaml"), "no space left")
    with open("/dev/full", "wb") as device:  # noqa: PTH123
        assert not os.path.isfile("/dev/full")  # noqa: PTH113
        assert device.writable()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")  # noqa: PTH110
def test_output_that_cannot_be_written():
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        command = [sys.executable, "-m", "brimful", "models"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("brimful: the output cannot be")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error():
    process = start("models", "--json")
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")


def wait_until(condition, timeout_s):
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.long  # train/test_loop.py interrupts training, the test below a command
@pytest.mark.torch
@pytest.mark.usefixtures("plan")
def test_ctrl_c_in_training_leaves_a_checkpoint_and_says_how_to_go_on(folder):
    text = (folder / "plan.yaml").read_text().replace("num_steps: 3", "num_steps: 100000")
    (folder / "long.yaml").write_text(text)
    process = start("train", "long.yaml", "--data", "data.txt", "--out", "run", cwd=folder)
    curve = folder / "run" / "metrics.jsonl"
    wait_until(lambda: curve.exists() and curve.read_bytes().count(b"\n") > 2, PATIENCE_S)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "go on with: brimful train run/plan.yaml --out run --resume" in out
    assert list((folder / "run" / "checkpoints").iterdir())


@pytest.mark.torch
def test_ctrl_c_in_a_simulation_is_one_line(folder):
    # Many blocks, so that there is something to interrupt.
    (folder / "deep.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 200}))
    process = start("simulate", "deep.json", *TINY[1:], cwd=folder)
    wait_until(lambda: sum(psutil.Process(process.pid).cpu_times()[:2]) > 1.5, PATIENCE_S)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    # Python ends itself by SIGINT where code made by exec was interrupted; to a shell both are 130.
    assert process.returncode in {130, -signal.SIGINT}
    assert (out, err) == ("", "brimful: interrupted\n")
