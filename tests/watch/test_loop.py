"""Any loop that is watched: a block around it and a step that can be taken again."""

import pytest

pytestmark = pytest.mark.torch


def parts():
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
    )
    batches = [torch.randn(512, 256) for _ in range(6)]
    return model, torch.optim.AdamW(model.parameters()), batches


def train_step(model, optimizer, batch):
    batch = batch.to(next(model.parameters()).device)
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def watch(tmp_path, *, step=train_step, every=1):
    from brimful import watch

    model, optimizer, batches = parts()
    with watch.Loop(model, optimizer, out=tmp_path, step=step) as loop:
        for number, batch in enumerate(loop(batches)):
            if number % every == every - 1:
                train_step(model, optimizer, batch)
            else:
                (model(batch) - batch).square().mean().backward()
    return loop


def fail_inside(loop, batches):
    with loop:
        for _ in loop(batches):
            raise RuntimeError("mine")


def test_a_loop_is_measured_and_simulated(tmp_path):
    run = watch(tmp_path).run
    measured = run.measurement.measured_peak_allocated_bytes
    batch_bytes = 512 * 256 * 4  # which a GPU holds, and a CPU has had before
    simulated = run.simulation.simulated_peak_allocated_bytes - batch_bytes
    assert simulated == pytest.approx(measured, rel=0.002)
    assert [p.phase for p in run.measurement.phases] == ["load", "step 1", "step 2+"]
    assert (tmp_path / "report.html").is_file()
    assert len(run.rows) == 6


def test_batches_that_make_one_step_are_told_apart_by_updates(tmp_path):
    run = watch(tmp_path, step=None, every=2).run
    assert len(run.rows) == 3
    phases = run.measurement.timeline.phases
    assert phases.count("step 1 backward") == phases.count("step 2 backward") == 2
    assert run.not_simulated == "the loop was given no step="


def test_a_loop_that_fails_fails_as_it_would(tmp_path):
    from brimful import watch as watching

    model, optimizer, batches = parts()
    loop = watching.Loop(model, optimizer, out=tmp_path)
    with pytest.raises(RuntimeError, match="mine"):
        fail_inside(loop, batches)
    assert loop.run is None
    assert watch(tmp_path).run is not None  # no profiler was left on


def test_a_loop_without_steps_leaves_nothing(tmp_path):
    from brimful import watch as watching

    model, optimizer, _ = parts()
    with watching.Loop(model, optimizer, out=tmp_path) as loop:
        assert list(loop([])) == []
    assert loop.run is None
    assert not list(tmp_path.iterdir())


def test_the_copies_take_no_memory_and_touch_nothing(tmp_path):
    import torch

    model, optimizer, _ = parts()
    before = [p.clone() for p in model.parameters()]
    watched = watch(tmp_path)
    assert watched.run.simulation.simulated_peak_allocated_bytes > 0
    assert all(torch.equal(a, b) for a, b in zip(before, parts()[0].parameters(), strict=True))
    assert optimizer.state == {}


def test_a_quantised_weight_is_named():
    import torch

    from brimful import watch as watching

    class Odd(torch.nn.Parameter):
        pass

    model, optimizer, batches = parts()
    model[0].weight = Odd(model[0].weight.data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching.Loop(model, optimizer, step=train_step) as loop:
        for batch in loop(batches):
            train_step(model, optimizer, batch)
    assert "0.weight is a Odd" in loop.run.not_simulated
