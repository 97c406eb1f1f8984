import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import InputError, UnsupportedError
from brimful.techniques.runnable import check_strategy
from brimful.values.strategy import num_checkpointed, num_micro_batches, spell_checkpointing
from samples import make_job, make_model, make_strategy


@given(st.integers(1, 200), st.data())
def test_checkpointing_is_spelt_as_it_is_read(num_layers, data):
    num_blocks = data.draw(st.integers(0, num_layers))
    text = spell_checkpointing(num_blocks, num_layers=num_layers)
    strategy = make_strategy(activation_checkpointing=text)
    assert num_checkpointed(strategy, num_layers=num_layers) == num_blocks


@pytest.mark.parametrize("text", ["", "FULL", "full:", "full:-1", "full:1.5", "some", "full: 2"])
def test_other_spellings_are_refused(text):
    with pytest.raises(
        InputError, match="use none, full, full:K, selective, selective:K, alternate"
    ):
        num_checkpointed(make_strategy(activation_checkpointing=text), num_layers=3)


def test_more_blocks_than_there_are_is_refused_with_both_numbers():
    with pytest.raises(InputError, match=r"4 blocks and the model has 3; use full:3"):
        check_strategy(make_job(), make_strategy(activation_checkpointing="full:4"))


@pytest.mark.parametrize("micro_batch", [0, -1, 3, 8])
def test_a_micro_batch_must_divide_the_global_batch(micro_batch):
    with pytest.raises(InputError, match=r"does not divide global_batch=4; use 1, 2, 4"):
        check_strategy(make_job(global_batch=4), make_strategy(micro_batch=micro_batch))


@pytest.mark.parametrize("loss_chunks", [0, -3, 49])
def test_chunks_must_hold_a_token_each(loss_chunks):
    with pytest.raises(InputError, match="48 tokens of a micro-batch; use 1 to 48"):
        check_strategy(make_job(), make_strategy(loss_chunks=loss_chunks))


def test_micro_batches_are_counted():
    assert num_micro_batches(make_job(global_batch=12), make_strategy(micro_batch=4)) == 3


def test_a_schedule_that_runs_on_one_pipeline_alone_is_answered_by_one_that_runs_on_more():
    job = make_job(model=make_model(num_hidden_layers=4), global_batch=8)
    strategy = make_strategy(
        micro_batch=1, pp=2, pp_schedule="dualpipev", stages_per_device=2, dp_replicate=2, zero=0,
        accumulate="hold",
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="over 2 data-parallel devices") as refused:
        check_strategy(job, strategy)
    assert refused.value.nearest == {"pp_schedule": "1f1b", "stages_per_device": None}


@pytest.mark.parametrize("task", ["sequence-classification", "module"])
def test_a_loss_of_samples_is_not_cut(task):
    job = make_job(task=task, packing="none")
    with pytest.raises(UnsupportedError, match="use 1") as raised:
        check_strategy(job, make_strategy(loss_chunks=2))
    assert raised.value.nearest == {"loss_chunks": 1}
