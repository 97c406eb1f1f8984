"""A process of its own for one program under one tool: ``python simulator_worker.py TOOL PROGRAM``.

The program is a plain loop of ``transformers`` and PyTorch: two steps of AdamW. Under every tool it
is the same text on CPU kernels; ``simulate`` is Brimful's own program of the same job.
Prints JSON: ``wall_s``, ``cpu_s``, ``rss_bytes``, ``peak_bytes``. Imports are not timed.
"""

import contextlib
import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "validation"))

from simulator_programs import NUM_STEPS, PROGRAMS, Program

from brimful.process.library_output import quiet_libraries


def main() -> None:
    tool, name = sys.argv[1:3]
    program = PROGRAMS[name]
    quiet_libraries()
    warnings.simplefilter("ignore")
    work = TOOLS[tool](program)
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    peak_bytes = work()
    told = {
        "wall_s": time.perf_counter() - start_s,
        "cpu_s": time.process_time() - start_cpu_s,
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_bytes": peak_bytes,
    }
    print(json.dumps(told))


def _config(program: Program) -> Any:
    from transformers import AutoConfig

    from brimful.models.config import load_model

    if program.fields is not None:
        return AutoConfig.for_model(**program.fields)
    spec = load_model(program.model)
    return AutoConfig.for_model(spec.model_type, **spec.hf_config)


def _imports(program: Program) -> Any:
    """Import all that a step needs, so that no tool pays for it."""
    import importlib

    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401
    from transformers import AutoModelForCausalLM  # noqa: F401

    config = _config(program)
    kind = config.model_type
    importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    return config


def _model(config: Any, program: Program) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    dtype = getattr(torch, program.dtype)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.train()
    if program.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    return model


def _sharded(model: Any, mesh: Any) -> None:
    """Give every block, then the root, to FSDP2."""
    from torch.distributed.fsdp import fully_shard

    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _optimizer(model: Any) -> Any:
    import torch

    return torch.optim.AdamW(model.parameters(), fused=True)


def _steps(model: Any, optimizer: Any, program: Program, device: str, after: Callable[[], None]):  # type: ignore[no-untyped-def]  # noqa: ANN202 - None
    import torch

    for _ in range(NUM_STEPS):
        ids = torch.zeros((program.batch, program.seq_len), dtype=torch.int64, device=device)
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after()


def _mem_tracker(program: Program) -> Callable[[], int]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    config = _imports(program)
    mesh = _fake_world(program.world)

    def work() -> int:
        with FakeTensorMode():
            model = _model(config, program)
            if mesh is not None:
                _sharded(model, mesh)
            optimizer = _optimizer(model)
            tracker = MemTracker()
            tracker.track_external(model, optimizer)
            with tracker:
                _steps(model, optimizer, program, "cpu", tracker.reset_mod_stats)
            peak = tracker.get_tracker_snapshot("peak")
        return int(peak[torch.device("cpu")]["Total"])

    return work


def _fake_world(world: int) -> Any:
    """Make a process group that moves nothing, as PyTorch's own examples of MemTracker do."""
    if world == 1:
        return None
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    return init_device_mesh("cpu", (world,))


def _pretend(program: Program) -> Callable[[], int]:
    from brimful import pretend

    config = _imports(program)

    def work() -> int:
        import torch

        with pretend.gpu(
            "h100-80gb", imitate="cpu", world_size=program.world, says_cuda=False
        ) as run:
            if program.world > 1:
                with torch.device("meta"):
                    model = _model(config, program)
                _sharded(model, run.mesh((program.world,), ("shard",)))
                model.to_empty(device="gpu:0")
            else:
                with torch.device("gpu:0"):
                    model = _model(config, program)
            _steps(model, _optimizer(model), program, "gpu:0", _nothing)
            return run.peak_allocated_bytes

    return work


def _simulate(program: Program) -> Callable[[], int]:
    from brimful.cli.main import parser_of
    from brimful.cli.resolved import asked
    from brimful.simulate.run import simulate

    _imports(program)
    job = asked(parser_of("simulate").parse_args(list(program.flags)))

    return lambda: simulate(*job).simulated_peak_allocated_bytes


def _real(program: Program) -> Callable[[], int]:
    """Run it on this CPU under the profiler, which sees every allocation and free."""
    from peer_worker import PeakMeter

    config = _imports(program)

    def work() -> int:
        model = _model(config, program)
        meter = PeakMeter()
        meter.begin(model)
        _steps(model, _optimizer(model), program, "cpu", _nothing)
        meter.end()
        return meter.peak_bytes

    return work


def _nothing() -> None:
    """Do nothing after a step."""


TOOLS: dict[str, Callable[[Program], Callable[[], int]]] = {
    "mem_tracker": _mem_tracker,
    "pretend": _pretend,
    "simulate": _simulate,
    "real": _real,
}

if __name__ == "__main__":
    with contextlib.suppress(KeyError):
        del os.environ["PYTORCH_CUDA_ALLOC_CONF"]
    main()
