import pytest

from brimful.train.schedule import learning_rate_at

SCHEDULES = ["cosine", "linear", "constant"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warm_up_is_linear_and_reaches_the_peak(plan_with, schedule):
    job = plan_with(num_steps=100, warmup_steps=10, learning_rate=1.0, schedule=schedule).job
    assert [learning_rate_at(job, step) for step in (1, 5, 10)] == pytest.approx([0.1, 0.5, 1.0])


def test_the_cosine_falls_to_a_tenth(plan_with):
    job = plan_with(num_steps=110, warmup_steps=10, learning_rate=2.0).job
    rates = [learning_rate_at(job, step) for step in range(10, 111)]
    assert rates == sorted(rates, reverse=True)
    assert rates[50] == pytest.approx(2.0 * 0.55)
    assert rates[-1] == pytest.approx(0.2)


def test_the_line_falls_to_zero_one_step_after_the_last(plan_with):
    job = plan_with(num_steps=110, warmup_steps=10, learning_rate=2.0, schedule="linear").job
    rates = [learning_rate_at(job, step) for step in range(11, 112)]
    assert rates[0] == 2.0
    assert rates[50] == pytest.approx(1.0)
    assert rates[-2] == pytest.approx(0.02)
    assert rates[-1] == 0.0


def test_the_constant_stays(plan_with):
    job = plan_with(num_steps=20, warmup_steps=5, learning_rate=3.0, schedule="constant").job
    assert {learning_rate_at(job, step) for step in range(5, 21)} == {3.0}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup_steps", [0, 1, 3])
def test_every_step_has_a_rate(plan_with, warmup_steps, schedule):
    job = plan_with(
        num_steps=3, warmup_steps=warmup_steps, learning_rate=1.0, schedule=schedule
    ).job
    assert all(0 < learning_rate_at(job, step) <= 1 for step in (1, 2, 3))


@pytest.mark.torch
@pytest.mark.parametrize("warmup_steps", [0, 1, 7, 19])
def test_the_line_is_that_of_transformers_up_to_where_steps_begin(plan_with, warmup_steps):
    """Theirs counts from 0: in the warm-up ours is one step ahead, afterwards at the same place."""
    import torch
    from transformers import get_linear_schedule_with_warmup

    num_steps = 20
    job = plan_with(
        num_steps=num_steps, warmup_steps=warmup_steps, learning_rate=0.5, schedule="linear"
    ).job
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    schedule = get_linear_schedule_with_warmup(optimizer, warmup_steps, num_steps)
    theirs = []
    for _ in range(num_steps + 1):
        theirs.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    ours = [learning_rate_at(job, step) for step in range(1, num_steps + 1)]
    assert ours[:warmup_steps] == pytest.approx(theirs[1 : warmup_steps + 1])
    assert ours[warmup_steps:] == pytest.approx(theirs[warmup_steps:num_steps])
