"""A script that trains by DeepSpeed as its documentation does, and who runs it: for real, or not.

``deepspeed_step.py for-real CASES PEAKS`` is one process of several with the variables of
``torchrun``; ``deepspeed_step.py pretended CASES PEAKS`` the first of as many on the pretend GPU,
with the kernels of a CPU. Both write the peak of each case in bytes. On a CPU what is offloaded
lies in the same memory, so that both count the host's tensors too.
"""

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed_cases import NUM_TRIES, Shape, SimulatedCase, read_cases

_STEPS = 3
_LET_GO_S = 0.01
"""What gloo's threads need to let go of the tensors that they have sent."""
_COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor",
    "reduce_scatter_tensor",
)  # fmt: skip


def train(case: SimulatedCase, device: str) -> Any:
    """Take some steps and return the engine."""
    import deepspeed

    model: Any = _model(case)
    if case.checkpoints:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=json.loads(case.config), dist_init_required=False
    )
    shape = Shape(rows=engine.train_micro_batch_size_per_gpu(), tokens=case.tokens)
    for _ in range(_STEPS * engine.gradient_accumulation_steps()):
        tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        del loss
    return engine


def _model(case: SimulatedCase) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(case.model_type, **json.loads(case.widths))
    config.use_cache = False
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model


def for_real(cases: list[SimulatedCase]) -> dict[str, int]:
    """Run cases in a group of gloo's; of some tries the lowest, as what lags only adds."""
    import deepspeed

    from brimful.measure.allocations import collect, lifetimes, live_bytes

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled where it is used
    accelerator = deepspeed.accelerator.get_accelerator()
    accelerator.is_fp16_supported = lambda: True  # slowly, by PyTorch's own kernels
    dist.init_process_group("gloo")
    for name in _COLLECTIVES:
        setattr(dist, name, _let_go(getattr(dist, name)))
    torch.set_num_threads(1)
    peaks: dict[str, int] = {}
    for case in cases:
        tries = []
        for _ in range(NUM_TRIES):
            cpu = torch.profiler.ProfilerActivity.CPU
            with torch.profiler.profile(activities=[cpu], profile_memory=True) as profiler:
                engine = train(case, "cpu")
            engine.destroy()
            del engine
            gc.collect()
            tree = profiler.profiler.kineto_results.experimental_event_tree()
            events = collect(tree).events
            tries.append(int(live_bytes(lifetimes(events), len(events.time_ns)).max()))
            dist.barrier()
        peaks[case.name] = min(tries)
    dist.destroy_process_group()
    return peaks if os.environ["RANK"] == "0" else {}


def _let_go(collective: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        work = collective(*args, **kwargs)
        if work is not None:
            work.wait()
        time.sleep(_LET_GO_S)
        return work

    return call


def pretended(cases: list[SimulatedCase]) -> dict[str, int]:
    """Run the first process of each case on the pretend GPU, each in a child of this one."""
    for model_type in {case.model_type for case in cases}:
        import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    peaks: dict[str, int] = {}
    for case in cases:
        reading, writing = os.pipe()
        if not os.fork():
            with _ending():
                os.write(writing, str(_pretend(case)).encode())
        os.close(writing)
        with os.fdopen(reading) as told:
            peaks[case.name] = int(told.read())
        os.wait()
    return peaks


def _pretend(case: SimulatedCase) -> int:
    from brimful import pretend

    with pretend.gpu(world_size=case.num_processes, imitate="cpu") as run:
        run.tape.count_host()
        engine = train(case, "cuda:0")
    del engine
    return run.peak_allocated_bytes


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """End this process behind the block, whatever happens."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - whoever waits reads nothing
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(0)


def main() -> None:
    """Run the cases of a file."""
    how, path, out = sys.argv[1:]
    cases = read_cases(Path(path))
    peaks = (for_real if how == "for-real" else pretended)(cases)
    if peaks:
        Path(out).write_text(json.dumps(peaks), "utf-8")


if __name__ == "__main__":
    main()
