"""How fast the pretend GPU is, against its budgets: ``python benchmarks/pretend.py [--json FILE]``.

Every figure is the best of several runs in fresh processes, imports apart. MemTracker, PyTorch's
own tool, simulates the very same two steps of an 8B model for comparison. Exit code 1: a bar was
missed.
"""

import argparse
import os
import sys
from pathlib import Path

import msgspec
from speed import Benchmark, Figure, figure_of, lines, printed, speed_of

from brimful.files.writing import write_bytes

THEME = "speed of the pretend GPU"
TIMES_FASTER = 20.0

_OURS = """
import time
from brimful.cli.resolved import asked
from brimful.cli.main import parser_of
from brimful.process.library_output import quiet_libraries
quiet_libraries()
from brimful.simulate.run import simulate
flags = ["llama-3.1-8b", "--gpus", "h200", "--precision", "bf16", "--seq-len", "4096"]
job = asked(parser_of("simulate").parse_args(flags))
import transformers.models.llama.modeling_llama, torch.distributed.tensor
start_s = time.perf_counter()
simulate(*job)
print(time.perf_counter() - start_s)
"""
_MEM_TRACKER = """
import time, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AutoConfig, AutoModelForCausalLM
from brimful.models.config import load_model
config = AutoConfig.for_model("llama", **load_model("llama-3.1-8b").hf_config)
start_s = time.perf_counter()
with FakeTensorMode():
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        for _ in range(2):
            ids = torch.zeros((1, 4096), dtype=torch.int64)
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.reset_mod_stats()
print(time.perf_counter() - start_s)
"""
_SHARDED = """
import time, torch, warnings
warnings.simplefilter("ignore")
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM
from brimful import pretend
from brimful.pretend.blocks import Pattern
from brimful.pretend.unroll import MIN_UNITS, unroll_blocks

def built(config):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)

def recorded(num_blocks):
    config = AutoConfig.for_model(**{**CONFIG, "num_hidden_layers": num_blocks})
    model = built(config).train()
    model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with pretend.gpu("h100-80gb", world_size=512, says_cuda=False) as run:
        mesh = run.mesh((512,), ("shard",))
        for block in model.model.layers:
            fully_shard(block, mesh=mesh, mp_policy=mixed)
        fully_shard(model, mesh=mesh, mp_policy=mixed)
        model.to_empty(device="gpu:0")
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(NUM_STEPS):
            ids = torch.zeros((1, 8192), dtype=torch.int64, device="gpu:0")
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return run.recording()

NUM_STEPS = 2
import transformers.models.llama.modeling_llama, transformers.models.qwen3_moe.modeling_qwen3_moe
start_s = time.perf_counter()
deep, few = (recorded(n) for n in (MIN_UNITS, 1))
pattern = Pattern(stack="model.layers", num_prefix=0, period=1)
whole = unroll_blocks(deep, shallow=few, pattern=pattern, num_blocks=CONFIG["num_hidden_layers"])
peak = int(whole.live_bytes().max())
took_s = time.perf_counter() - start_s
assert peak > 2**30
print(took_s)
"""
LLAMA_405B = {
    "model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248,
    "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8,
    "vocab_size": 128256,
}  # fmt: skip
QWEN3_235B = {
    "model_type": "qwen3_moe", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 128, "moe_intermediate_size": 1536, "num_experts": 128,
    "num_experts_per_tok": 8, "vocab_size": 151936, "experts_implementation": "grouped_mm",
}  # fmt: skip
_REPLAY = """
import sys, time
sys.path.insert(0, "benchmarks")
from allocator import tape
from brimful.allocator.replay import Requests, replay
from brimful.allocator.config import PYTORCH_DEFAULTS
events, sizes, streams = tape(1_000_000)
start_s = time.perf_counter()
requests = Requests(events=events, num_bytes=sizes, streams=streams)
replay(requests, settings=PYTORCH_DEFAULTS, capacity_bytes=None)
print(time.perf_counter() - start_s)
"""


def _sharded(config: dict[str, object]) -> float:
    return printed(f"CONFIG = {config!r}\n{_SHARDED}")


def benchmarks() -> tuple[Benchmark, ...]:
    """List what is measured, with its bar."""
    return (
        Benchmark("8B, two steps", "s", 1.5, 3, lambda: printed(_OURS)),
        Benchmark("8B, two steps, MemTracker", "s", None, 1, lambda: printed(_MEM_TRACKER)),
        Benchmark("405B, FSDP2, 512 ranks", "s", 5.0, 2, lambda: _sharded(LLAMA_405B)),
        Benchmark("235B MoE, FSDP2, 512 ranks", "s", 5.0, 2, lambda: _sharded(QWEN3_235B)),
        Benchmark("replay of 1e6 events", "s", 2.0, 2, lambda: printed(_REPLAY)),
    )


def main() -> int:
    """Measure, print, and store where asked."""
    parser = argparse.ArgumentParser(description="measure the budgets of the pretend GPU")
    parser.add_argument("--json", type=Path, default=None, help="write the figures as one row")
    args = parser.parse_args()
    load_average = os.getloadavg()[0]  # of before: this file loads the machine too
    figures = tuple(figure_of(benchmark, 0) for benchmark in benchmarks())
    speed = speed_of(figures, THEME, load_average)
    faster = _times_faster(figures)
    print("\n".join(lines(speed)))
    print(f"{faster:.0f} times faster than MemTracker (bar: {TIMES_FASTER:.0f})")
    if args.json is not None:
        write_bytes(args.json, msgspec.json.encode(speed) + b"\n")
    missed = [f for f in figures if f.bar is not None and f.measured_best > f.bar]
    return 1 if missed or faster < TIMES_FASTER else 0


def _times_faster(figures: tuple[Figure, ...]) -> float:
    by_name = {figure.name: figure.measured_best for figure in figures}
    return by_name["8B, two steps, MemTracker"] / by_name["8B, two steps"]


if __name__ == "__main__":
    sys.exit(main())
