import pytest

from brimful.train.schedule import learning_rate_at


def test_warm_up_is_linear_and_reaches_the_peak(plan_with):
    job = plan_with(num_steps=100, warmup_steps=10, learning_rate=1.0).job
    assert [learning_rate_at(job, step) for step in (1, 5, 10)] == pytest.approx([0.1, 0.5, 1.0])


def test_the_cosine_falls_to_a_tenth(plan_with):
    job = plan_with(num_steps=110, warmup_steps=10, learning_rate=2.0).job
    rates = [learning_rate_at(job, step) for step in range(10, 111)]
    assert rates == sorted(rates, reverse=True)
    assert rates[50] == pytest.approx(2.0 * 0.55)
    assert rates[-1] == pytest.approx(0.2)


@pytest.mark.parametrize("warmup_steps", [0, 1, 3, 50])
def test_every_step_has_a_rate(plan_with, warmup_steps):
    job = plan_with(num_steps=3, warmup_steps=warmup_steps, learning_rate=1.0).job
    assert all(0 < learning_rate_at(job, step) <= 1 for step in (1, 2, 3))
