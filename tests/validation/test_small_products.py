"""Products that few processes train: each of several techniques that no case has together."""

import pytest
import ragged
import small_products
from products_draws import LEAST_TECHNIQUES

from brimful.build.batch import ANSWER, QUESTION, count_targets
from brimful.values.strategy import world_size
from pairs import make_pair_job

pytestmark = pytest.mark.torch

NUM = 3


def drawn(**how):
    return small_products.drawn(7, NUM, small_products.TINY, **how)


def test_as_many_are_drawn_for_each_number_of_processes_and_no_layout_comes_first():
    cases = drawn()
    sizes = [world_size(case.strategy) for case in cases]
    assert sizes == [size for size in small_products.SIZES for _ in range(NUM)]
    for size in small_products.SIZES:
        of_size = [case.strategy for case in cases if world_size(case.strategy) == size]
        assert len({small_products._layout(strategy) for strategy in of_size}) == NUM
    assert all(len(small_products.words_of(case)) >= LEAST_TECHNIQUES for case in cases)
    assert drawn() == cases


def test_what_one_case_has_already_is_drawn_again():
    known = drawn(sizes=(2,))
    others = drawn(sizes=(2,), beside=known)
    for case in others:
        words = set(small_products.words_of(case))
        assert not any(words <= set(small_products.words_of(each)) for each in known)


def test_pairs_are_two_answers_behind_one_question_and_one_pair_counts_for_nothing():
    job = make_pair_job(seq_len=16, global_batch=4)
    batches = ragged.batches_of(job, ragged.samples_of(job, step=0), micro_batch=2)
    assert count_targets(batches) == job.global_batch - 1
    for batch in batches:
        assert batch.inputs.shape == batch.segments.shape == (2, 2, job.seq_len)
        asked = batch.segments == QUESTION
        assert (asked[:, 0] == asked[:, 1]).all()
        assert (batch.inputs * asked)[:, 0].equal((batch.inputs * asked)[:, 1])
        assert (batch.segments == ANSWER).any(-1).all()
