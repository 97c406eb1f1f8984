"""One process of several that run cases together: ours by itself, or handed over to DeepSpeed.

``deepspeed_worker.py REQUEST ANSWERS``, with the variables of ``torchrun``, reads the cases
from one file; each process writes what it saw to a file of its own. A case is trained on the
made-up samples of ``ragged``; its first two steps are metered.
"""

import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from cases import Case
from deepspeed_asks import Ask, Told

from brimful.process.library_output import quiet_libraries

quiet_libraries()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from progress import shown  # noqa: E402
from ragged import batches_of, samples_of  # noqa: E402

from brimful.build.assemble import build_program  # noqa: E402
from brimful.build.batch import Batch, count_targets  # noqa: E402
from brimful.build.deepspeed.config import deepspeed_config  # noqa: E402
from brimful.build.parallel.place import own_part  # noqa: E402
from brimful.build.precision import PARAMETER_DTYPE  # noqa: E402
from brimful.build.program import Program  # noqa: E402
from brimful.build.step import evaluate, train_step  # noqa: E402
from brimful.measure.meter import CpuMeter  # noqa: E402
from brimful.values.job import Job  # noqa: E402
from brimful.values.strategy import num_micro_batches  # noqa: E402

NUM_METERED_STEPS = 2
_CPU = torch.device("cpu")


def run(case: Case, folder: Path | None) -> Told:
    """Train one case; its first steps are metered."""
    meter = CpuMeter()
    meter.start()
    program = build_program(case.job, case.strategy, _CPU)
    pairs = []
    for step in range(max(case.job.num_steps, NUM_METERED_STEPS)):
        pairs.append(_step(program, step))
        if step + 1 == NUM_METERED_STEPS:
            meter.stop(program)
    heldout = evaluate(program, _batches(program, 0))
    if folder is not None:
        _hand_over(program, folder)
    _end(program)
    assert meter.reading is not None
    return Told(
        losses=tuple(loss for loss, _ in pairs),
        norms=tuple(norm for _, norm in pairs),
        heldout=heldout,
        peak_bytes=meter.reading.measured_peak_allocated_bytes,
        items={item.name: item.num_bytes for item in meter.reading.items},
        misread=tuple(_misread(case)) if case.strategy.engine == "deepspeed" else (),
    )


def _misread(case: Case) -> Iterator[str]:
    """Let DeepSpeed's own parser read the JSON, and say what it made of it other than was meant."""
    from deepspeed.runtime.config import DeepSpeedConfig

    job, strategy = case.job, case.strategy
    written = json.loads(json.dumps(deepspeed_config(job, strategy)))
    read = DeepSpeedConfig(written)
    zero = read.zero_config
    parted = [
        "none" if place is None else getattr(place.device, "value", place.device)
        for place in (zero.offload_optimizer, zero.offload_param)
    ]
    meant = {
        "train_batch_size": (read.train_batch_size, job.global_batch),
        "micro_batch": (read.train_micro_batch_size_per_gpu, strategy.micro_batch),
        "accumulation": (read.gradient_accumulation_steps, num_micro_batches(job, strategy)),
        "gradient_clipping": (read.gradient_clipping, job.clip),
        "stage": (int(zero.stage), strategy.zero),
        "offload": (
            parted.count("cpu"),
            ("none", "optimizer", "parameters").index(strategy.offload),
        ),
        "bf16": (read.bfloat16_config.enabled, job.precision == "bf16-master"),
        "fp16": (read.float16_config.enabled, job.precision == "fp16-master"),
        "torch_autocast": (read.torch_autocast_enabled, False),
        "communication": (str(read.communication_data_type), str(_reduced(job))),
        "optimizer": (read.optimizer_name, None),
        "scheduler": (read.scheduler_name, None),
        "untested optimizer": (read.zero_allow_untested_optimizer, True),
        "DeepSpeed's own optimizer": (read.zero_force_ds_cpu_optimizer, False),
        "predivide": (read.gradient_predivide_factor, 1.0),
        "prescale": (read.prescale_gradients, False),
        "reduce_bucket_size": (zero.reduce_bucket_size, job.model.hidden_size**2),
    }
    for name, (found, wanted) in meant.items():
        if found != wanted:
            yield f"{name} was read as {found}, not {wanted}"


def _reduced(job: Job) -> torch.dtype:
    return PARAMETER_DTYPE[job.precision]


def _batches(program: Program, step: int) -> list[Batch]:
    samples = samples_of(program.job, step=step)
    return batches_of(program.job, samples, micro_batch=program.strategy.micro_batch)


def _step(program: Program, step: int) -> tuple[float, float | None]:
    batches = _batches(program, step)
    own = own_part(batches, program.strategy)
    rate, num_targets = program.job.learning_rate, count_targets(batches)
    result = train_step(program, own, num_targets=num_targets, learning_rate=rate)
    return float(result.loss), None if result.skipped else float(result.grad_norm)


def _hand_over(program: Program, folder: Path) -> None:
    from brimful.train.handover import hand_over

    hand_over(program, tokenizer_path=None, folder=folder, merged=False)


def _end(program: Program) -> None:
    root: Any = program.root
    if hasattr(root, "destroy"):
        root.destroy()
    gc.collect()


def main() -> None:
    """Answer the request."""
    ask = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Ask)
    torch.set_num_threads(1)
    rank = 0
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    told = []
    for number, case in enumerate(shown(f"process {rank}", ask.cases)):
        folder = None if ask.folder is None else Path(ask.folder) / str(number)
        told.append(run(case, folder))
    Path(sys.argv[2], f"{rank}.json").write_bytes(msgspec.json.encode(told))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
