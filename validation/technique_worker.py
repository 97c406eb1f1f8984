"""A process of its own for each real run, forked from one that has only imported libraries.

It never loads the tape, and says so: what is measured here knows nothing of what was simulated.
"""

import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from cases import Case
from worker import NUM_WARM_STEPS, Metered

from brimful.process.library_output import quiet_libraries

_LIBRARIES = (
    "brimful.build.assemble",
    "brimful.measure.meter",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.switch_transformers.modeling_switch_transformers",
    "transformers.models.t5.modeling_t5",
    "peft",
    "bitsandbytes",
)
"""What every run would import: some seconds, spent once."""
_UNKNOWN = ("brimful.pretend", "brimful.simulate")


@contextmanager
def meters() -> Iterator[ProcessPoolExecutor]:
    """Open a pool that runs one task at a time, each in a fresh process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_LIBRARIES))
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        yield pool


def meter(pool: ProcessPoolExecutor, case: Case) -> Metered:
    """Meter the first two steps of a case.

    Args:
        pool: Of ``meters``.
        case: What is run; ``weights`` of any name stand for a folder that is written for it.
    """
    return msgspec.json.decode(
        pool.submit(metered, msgspec.json.encode(case)).result(), type=Metered
    )


def metered(request: bytes) -> bytes:
    """Meter two steps, in the order in which ``train`` does; runs in the other process."""
    quiet_libraries()
    case = msgspec.json.decode(request, type=Case)
    with tempfile.TemporaryDirectory() as folder:
        job = case.job
        if job.weights is not None:
            _write_weights(case, Path(folder))
            job = msgspec.structs.replace(job, weights=folder)
        return msgspec.json.encode(_metered(msgspec.structs.replace(case, job=job)))


def _write_weights(case: Case, folder: Path) -> None:
    """Write the weights of the plain model, in fp32 and under its own names."""
    import torch
    from safetensors.torch import save_file

    from brimful.build.assemble import build_program

    plain = msgspec.structs.replace(
        case.job, weights=None, method="full", adapter=None, precision="fp32", loss_scale=None
    )
    model: Any = build_program(plain, case.strategy, torch.device("cpu")).model
    if case.job.task == "module":
        save_file(model.model.state_dict(), folder / "model.safetensors")
    else:
        model.save_pretrained(folder)


def _metered(case: Case) -> Metered:
    import torch

    from brimful.build.assemble import build_program
    from brimful.measure.meter import CpuMeter

    instrument = CpuMeter()
    instrument.start()
    program = build_program(case.job, case.strategy, torch.device("cpu"))
    for _ in range(NUM_WARM_STEPS):
        _step(program, case)
    instrument.stop(program)
    known = [name for name in sys.modules if name.startswith(_UNKNOWN)]
    assert not known, f"a real run has loaded {known}"
    reading = instrument.reading
    assert reading is not None
    return Metered(
        measured_peak_allocated_bytes=reading.measured_peak_allocated_bytes, items=reading.items
    )


def _step(program: Any, case: Case) -> None:
    """Take one optimizer step on random rows and wait for its loss.

    Raises:
        RuntimeError: The step was skipped, so that its update was not metered.
    """
    from technique_batches import FullBatches

    from brimful.build.batch import count_targets
    from brimful.build.step import train_step

    batches = FullBatches(case.job, micro_batch=case.strategy.micro_batch)
    num_targets, rate = count_targets(batches), case.job.learning_rate
    result = train_step(program, batches, num_targets=num_targets, learning_rate=rate)
    float(result.loss)
    if result.skipped:
        raise RuntimeError("a step was skipped; lower initial_scale")
