import math

import pytest

from brimful.errors import InputError
from brimful.values.job import MAX_COUNT, check_job
from samples import make_job


def test_a_sound_job_passes_as_it_is():
    job = make_job()
    assert check_job(job) is job
    assert job.tokens_per_step == job.global_batch * job.seq_len


@pytest.mark.parametrize("field", ["seq_len", "global_batch", "num_steps"])
@pytest.mark.parametrize("value", [0, -1, MAX_COUNT + 1])
def test_absurd_counts_are_refused_with_the_number(field, value):
    with pytest.raises(InputError, match=f"{field}={value} is out of range"):
        check_job(make_job(**{field: value}))


@pytest.mark.parametrize("field", ["learning_rate", "weight_decay", "clip"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_absurd_rates_are_refused(field, value):
    with pytest.raises(InputError, match=f"{field}="):
        check_job(make_job(**{field: value}))


def test_a_sequence_beyond_the_positions_is_refused_with_both_numbers():
    with pytest.raises(InputError, match=r"seq_len=513.*512 positions; use 512 or less"):
        check_job(make_job(seq_len=513))
