"""Metering two real steps of a program, for the tests that compare them with a simulation."""

from itertools import pairwise


def random_batches(job, strategy):
    """Return a step's rows of random tokens, cut into micro-batches."""
    import torch

    from brimful.build.batch import Batch

    ids = torch.randint(0, job.model.vocab_size, (job.global_batch, job.seq_len))
    return [Batch(rows, rows) for rows in ids.split(strategy.micro_batch)]


def take_two_steps(program, batches):
    """Take the steps that are metered: the first makes things ready, the second is like all."""
    from brimful.build.batch import count_targets
    from brimful.build.step import train_step

    for _ in range(2):
        num_targets = count_targets(batches)
        train_step(program, batches, num_targets=num_targets, learning_rate=1e-3)


def product_scratch_bytes(job, strategy):
    """Measure what oneDNN's products of the head take for themselves on a CPU with AMX.

    It takes a scratchpad from PyTorch's allocator there in 16 bits, which nobody simulates.
    """
    import torch

    if job.precision.startswith("fp32") or not torch.cpu._is_amx_tile_supported():
        return 0
    dtype = torch.float16 if job.precision.startswith("fp16") else torch.bfloat16
    tokens, spec = strategy.micro_batch * job.seq_len, job.model
    x = torch.randn(tokens, spec.hidden_size).to(dtype).requires_grad_()
    weight = torch.randn(spec.vocab_size, spec.hidden_size).to(dtype).requires_grad_()
    on_cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=on_cpu, profile_memory=True) as profiler:
        out = torch.nn.functional.linear(x, weight)
        out.backward(torch.ones_like(out))
    events = profiler.profiler.kineto_results.experimental_event_tree()
    sizes = list(_allocated(events))
    passing = (a for a, b in pairwise(sizes) if a > 0 and b == -a)
    return max(passing, default=0)


def _allocated(events):
    for event in events:
        if event.tag.name == "Allocation":
            yield event.extra_fields.alloc_size
        yield from _allocated(event.children)


def meter_steps(job, strategy, batches=None):
    """Meter two real steps on a CPU, in the order in which production does."""
    import torch

    from brimful.build.assemble import build_program
    from brimful.measure.meter import CpuMeter

    batches = random_batches(job, strategy) if batches is None else batches
    meter = CpuMeter()
    meter.start()
    program = build_program(job, strategy, torch.device("cpu"))
    take_two_steps(program, batches)
    meter.stop(program)
    return meter.reading
