"""Command lines and files drawn at random, valid and not. What must hold: ``fuzz_checks``."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import yaml
from hypothesis import strategies as st

from brimful.cli.main import parser_of
from brimful.hardware.gpus import load_cluster
from brimful.models.architectures import ARCHITECTURES
from brimful.models.config import load_model
from brimful.models.registry import registry
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.values.job import Optimizer, Precision, Schedule, plain_job
from brimful.values.plan import to_yaml

ROOT = Path(__file__).parents[1]
MODELS = ("gpt2", "tinyllama-1.1b", "llama-3.1-8b", "llama-3.1-70b", "gemma-2-2b", "qwen3-0.6b",
          "bert-base-uncased", "deepseek-v3", "gpt-oss-20b", "gpt3-175b")  # fmt: skip
GPUS = ("a100-40gb", "h100-80gb", "8xh100-80gb", "4x8xh100-80gb", "t4", "2xv100-32gb", "p100-16gb",
        "128x8xh100-80gb", "mi300x", "rtx-4090")  # fmt: skip


class Asked(NamedTuple):
    """A command line and the files it reads, by name; run in a folder that holds nothing else."""

    argv: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...] = ()


WORDS = st.sampled_from(
    [
        "", " ", "-1", "0", "1", "2", "3", "7", "8", "64", "1e9", "1e400", "-1e400", "nan", "inf",
        "1_000", "0x10", "1.5", "1e-300", str(10**18), "9" * 5000, "none", "full", "full:3",
        "full:-1",
        "selective", "all",
        "true", "null", "\u202eevil", "a\nb", "\x1b[31mred", "caf\u00e9",
        "\u0661\u0662", "--", "-x", "../..", "x" * 5000, "1GiB", "-1GiB", "1e30GiB", "nanGiB", "1B",
        "1,2,3", ",", "9xh100-80gb", "0x8xh100-80gb", "parameters:3", "activations:-1", "\ud800",
    ]
)  # fmt: skip
"""Spellings that parsers trip over: signs, sizes, other digits, control characters, surrogates."""
SANE = st.sampled_from(
    ["1", "2", "4", "8", "16", "32", "128", "512", "2048", "8192", "0.1", "1e-4"]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, -1, 2, 3, 10**9, 10**12, 10**15, 2**31, 2**63, 10**400]),
    st.floats(),
    st.sampled_from(["", "1", "none", "NaN", "llama", "\x1b[2J", "\u202e", "a\nb", "x" * 3000]),
    st.lists(st.integers(-2, 70), max_size=3),
    st.dictionaries(st.sampled_from(["a", "type", "rope_type"]), st.integers(), max_size=2),
)
"""Values of every type, sound and absurd."""


@cache
def choices_of(verb: str) -> tuple[tuple[str, tuple[str, ...], bool], ...]:
    """List a verb's flags, the names that its help lists, and whether it takes a value."""
    found = []
    for action in parser_of(verb)._actions:  # noqa: SLF001 - argparse tells in no other way
        flag = next((f for f in action.option_strings if f.startswith("--")), None)
        if flag is None or flag in {"--help", "--json"}:
            continue
        words = (action.help or "").partition(";")[0].replace(",", " ").split()
        words = [word for word in words if word not in {"or", "and"}]
        found.append((flag, tuple(words), action.nargs != 0))
    return tuple(found)


SAFE: dict[str, tuple[str, ...]] = {
    "--precision": get_args(Precision),
    "--optimizer": get_args(Optimizer),
    "--schedule": get_args(Schedule),
    "--method": ("full", "lora", "dora", "qlora"),
    "--activation-checkpointing": ("none", "full", "full:1", "full:2"),
    "--zero": ("0", "1", "2", "3"),
    "--attention": ("sdpa", "flash", "efficient", "eager"),
    "--micro-batch": ("1", "2", "4"),
    "--global-batch": ("8", "16", "64", "512"),
    "--seq-len": ("64", "128", "512", "1024"),
    "--loss-chunks": ("1", "2", "8"),
    "--accumulate": ("reduce-each", "hold"),
    "--memory-limit": ("1GiB", "8GiB", "12GiB", "500MiB"),
    "--tokens": ("1B", "1000000", "15T"),
}
"""Values of the most-used flags with which most command lines are answered."""


@st.composite
def flags(draw: st.DrawFn, verb: str, *, sound: bool = False) -> tuple[str, ...]:
    """Draw some flags of a verb: sound ones, or any with any value."""
    names = sorted(SAFE) if sound else [name for name, _, _ in choices_of(verb)]
    known = {name: (words, takes) for name, words, takes in choices_of(verb)}
    argv: list[str] = []
    chosen = draw(st.lists(st.sampled_from(names), max_size=6, unique=True))
    for name in (name for name in chosen if name in known):
        words, takes = known[name]
        if not takes:
            argv.append(name)
            continue
        values = st.sampled_from(SAFE[name]) if name in SAFE else st.sampled_from(words or ("1",))
        any_value = values if sound else st.one_of(values, values, SANE, WORDS)
        argv.append(f"{name}={draw(any_value)}")
    return tuple(argv)


TRAINED = ("gpt2", "tinyllama-1.1b", "llama-3.1-8b", "llama-3.1-70b", "gemma-2-2b", "qwen3-0.6b",
           "bert-base-uncased", "gpt3-175b")  # fmt: skip
SIZES = (("a100-40gb", 1), ("h100-80gb", 1), ("8xh100-80gb", 8), ("2xv100-32gb", 2),
         ("4x8xh100-80gb", 32), ("128x8xh100-80gb", 1024), ("rtx-4090", 1))  # fmt: skip
_SET = frozenset({"--zero", "--global-batch"})


@st.composite
def strategies(draw: st.DrawFn) -> Asked:
    """Draw jobs and strategies on clusters, most of which are answered."""
    model, (gpus, num) = draw(st.sampled_from(TRAINED)), draw(st.sampled_from(SIZES))
    tp, pp = draw(st.sampled_from((1, 1, 1, 2, 4))), draw(st.sampled_from((1, 1, 1, 2)))
    shard = draw(st.sampled_from((1, 2, 8, num)))
    degrees: tuple[str, ...] = ()
    if num % (tp * pp * shard) == 0 and draw(st.booleans()):
        replicate = num // (tp * pp * shard)
        zero = draw(st.sampled_from((2, 3))) if shard > 1 else 0
        named = {"tp": tp, "pp": pp, "dp-shard": shard, "dp-replicate": replicate, "zero": zero}
        degrees = tuple(f"--{name}={degree}" for name, degree in named.items())
    batch = f"--global-batch={num * draw(st.sampled_from((1, 2, 4)))}"
    more = [flag for flag in draw(flags("estimate", sound=True)) if flag.split("=")[0] not in _SET]
    argv = ("estimate", model, f"--gpus={gpus}", batch, *degrees, *more, "--json")
    return Asked(argv)


@st.composite
def commands(draw: st.DrawFn) -> Asked:
    """Draw flags of ``estimate`` with any value."""
    model = draw(st.one_of(st.sampled_from(MODELS), st.sampled_from(MODELS), WORDS))
    gpus = draw(st.one_of(st.sampled_from(GPUS), st.sampled_from(GPUS), WORDS))
    return Asked(("estimate", model, f"--gpus={gpus}", *draw(flags("estimate")), "--json"))


@st.composite
def plans(draw: st.DrawFn) -> Asked:
    """Draw searches of jobs that have formulas."""
    model = draw(st.sampled_from(("tinyllama-1.1b", "llama-3.1-8b", "gpt2")))
    gpus = draw(st.sampled_from(("a100-40gb", "8xh100-80gb", "rtx-4090")))
    limit = draw(st.sampled_from(("", "--memory-limit=12GiB", "--memory-limit=1GiB")))
    batch = draw(st.sampled_from(("--global-batch=8", "--global-batch=64", "--global-batch=7")))
    seq = draw(st.sampled_from(("--seq-len=128", "--seq-len=1024", "--seq-len=0")))
    more = tuple(flag for flag in (limit, batch, seq) if flag)
    return Asked(("plan", model, f"--gpus={gpus}", *more, "--json"))


@cache
def plan_of() -> dict[str, Any]:
    """Return a sound plan as plain dicts and lists."""
    job = plain_job(
        load_model("tinyllama-1.1b"), precision="bf16-mixed", seq_len=512, global_batch=8
    )
    cluster = load_cluster("8xh100-80gb", memory_limit_bytes=None)
    plan = solve(job, cluster, Pins(), attention="sdpa", objective="time").plan
    made: dict[str, Any] = yaml.safe_load(to_yaml(plan))
    return made


Place = tuple[Any, ...]
LARGE = 10**15


def places_of(value: Any, place: Place = ()) -> list[Place]:
    """List where every value in plain dicts and lists stands."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [place, *(found for key, each in inner for found in places_of(each, (*place, key)))]


def changed(value: Any, place: Place, change: Callable[[Any, Any], None]) -> Any:
    """Return a copy in which ``change(container, key)`` was made at a place."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    change(inner, place[-1])
    return copy


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and abs(value) < LARGE


@st.composite
def mutated(draw: st.DrawFn, value: Any, values: st.SearchStrategy[Any] = SCALARS) -> Any:
    """Change a few values of a document: drop, replace, nest, rename, or leave all as it is."""
    for _ in range(draw(st.sampled_from((0, 1, 1, 1, 2, 3)))):
        found = [place for place in places_of(value) if place]
        if not found:
            return value
        place = draw(st.sampled_from(found))
        how = draw(st.sampled_from(("drop", "rename", "nest", *("scale",) * 4, *("replace",) * 2)))
        new, factor = draw(values), draw(st.sampled_from((0, -1, 2, 2, 3, 4, 0.5, 10**6)))

        def change(
            container: Any, key: Any, how: str = how, new: Any = new, factor: float = factor
        ) -> None:
            if how == "drop":
                del container[key]
            elif how == "rename" and isinstance(container, dict):
                container[str(new)] = container.pop(key)
            elif how == "nest":
                container[key] = [container[key]]
            elif how == "scale" and _is_number(container[key]):
                container[key] *= factor
            else:
                container[key] = new

        value = changed(value, place, change)
    return value


BROKEN = st.sampled_from(
    [
        b"", b"\xff\xfe", b"\xef\xbb\xbf{}", b"null", b"[]", b"3", b"{", b'"x"', b"[" * 5000,
        b"\0",
        b'{"a":' * 3000, b"9" * 6000, b"a: &a [*a]\n", b"{a: 1, a: 2}",
        b"!!python/object:os.system x",
        b"a: &x [1,1]\nb: &y [*x,*x,*x]\nc: [*y,*y,*y]\n", b"2026-13-45",
        b"? [a]\n: b\n", b"\t- a",
        b"model: [1]", b"model: gpt2\nsteps: .nan", b"<<: 3", b"%YAML 9.9\n---\na", b"---\n---\n",
        b"model: gpt2\nmodel: gpt2", b"model: gpt2\n<<: [gpt2]", b"1: 2", b"~: 1",
        b"model: gpt2\n~: 1",
    ]
)  # fmt: skip
"""Files that are nothing, or nearly something."""


def _yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode(
        "utf-8", "surrogatepass"
    )


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


@st.composite
def plan_files(draw: st.DrawFn) -> Asked:
    """Draw plan files: a real one with a few changes, or none at all."""
    content = draw(st.one_of(BROKEN, *[mutated(plan_of()).map(_yaml)] * 4))
    return Asked(("estimate", "plan.yaml", "--json"), (("plan.yaml", content),))


JOB = {
    "model": "tinyllama-1.1b", "gpus": "8xh100-80gb", "seq_len": 512, "global_batch": 16,
    "precision": "bf16-mixed", "steps": 100, "learning_rate": 3e-4, "clip": 1.0, "method": "lora",
    "lora_rank": 8, "data": {"path": "x.jsonl", "split": "train"}, "optimizer": "adamw",
}  # fmt: skip


@st.composite
def job_files(draw: st.DrawFn) -> Asked:
    """Draw job files."""
    content = draw(st.one_of(BROKEN, *[mutated(JOB).map(_yaml)] * 4))
    return Asked(("estimate", "job.yaml", "--json"), (("job.yaml", content),))


@cache
def _configs() -> tuple[dict[str, Any], ...]:
    found = registry()
    return tuple(
        {"model_type": found[name]["model_type"], **found[name]["config"]}
        for name in sorted(found)
        if found[name]["model_type"] in ARCHITECTURES
    )


@st.composite
def configs(draw: st.DrawFn) -> Asked:
    """Draw a model's config.json."""
    config = draw(st.sampled_from(_configs()))
    content = draw(st.one_of(BROKEN, *[mutated(config).map(_json)] * 6))
    argv = ("estimate", "config.json", f"--gpus={draw(st.sampled_from(GPUS))}", "--json")
    return Asked(argv, (("config.json", content),))


PRICES = {"h100-80gb": 2.5, "a100-40gb": {"rent": 1.2, "buy": 11000.0}}


@st.composite
def prices(draw: st.DrawFn) -> Asked:
    """Draw price files."""
    content = draw(st.one_of(BROKEN, *[mutated(PRICES).map(_yaml)] * 4))
    argv = ("estimate", "gpt2", f"--gpus={draw(st.sampled_from(('h100-80gb', '8xa100-40gb')))}")
    return Asked((*argv, "--prices=prices.yaml", "--json"), (("prices.yaml", content),))


DEEPSPEED = {
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
    "gradient_clipping": 1.0, "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "overlap_comm": True},
    "optimizer": {"type": "AdamW", "params": {
        "lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 3e-4}},
}  # fmt: skip


@st.composite
def deepspeed(draw: st.DrawFn) -> Asked:
    """Draw DeepSpeed's JSON, which ``plan --from`` reads."""
    content = draw(st.one_of(BROKEN, *[mutated(DEEPSPEED).map(_json)] * 4))
    argv = (
        "plan",
        "tinyllama-1.1b",
        "--gpus=8xh100-80gb",
        "--seq-len=128",
        "--from=ds.json",
        "--json",
    )
    return Asked(argv, (("ds.json", content),))


KINDS: dict[str, Callable[[], st.SearchStrategy[Asked]]] = {
    "strategies": strategies,
    "flags": commands,
    "config.json": configs,
    "plan files": plan_files,
    "job files": job_files,
    "price files": prices,
    "DeepSpeed files": deepspeed,
    "searches": plans,
}
