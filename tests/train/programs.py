"""Small programs of many kinds that the tests of checkpoints share, and steps without data."""

import dataclasses


def build(plan):
    import torch

    from brimful.build.assemble import build_program

    return build_program(plan.job, plan.strategy, torch.device("cpu"))


def with_optimizer(program, make):
    """Give a program another optimizer; ``make`` gets the parameters that train."""
    trained = [p for p in program.model.parameters() if p.requires_grad]
    return dataclasses.replace(program, optimizer=make(trained))


def nudge(program, seed):
    """Take an optimizer step on gradients that only the seed decides."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for parameter in program.model.parameters():
        if parameter.requires_grad:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.grad = noise.to(parameter.dtype)
    program.optimizer.step()
    program.optimizer.zero_grad(set_to_none=True)


def weights(program):
    return {name: p.detach().clone() for name, p in program.model.named_parameters()}


def same(one, other):
    import torch

    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


def progress(plan, step, *, heldout_loss=None):
    from brimful.train.checkpoint import Progress
    from brimful.train.data.batches import DataPosition

    position = DataPosition(epoch=1, index=step)
    return Progress(
        plan=plan, step=step, position=position, tokens_hash="abc", heldout_loss=heldout_loss
    )
