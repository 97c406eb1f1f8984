"""Metering two real steps of a program, for the tests that compare them with a simulation."""


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
