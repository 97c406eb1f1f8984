"""The longest text and the most texts at once: what is named holds, and much more does not."""

import msgspec

from brimful.cost.estimate import predicted_peak
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search.holding import as_it_fits
from brimful.search.ledger import Point, predict
from brimful.search.most import largest_micro_batch, leanest, longest
from brimful.values.job import Adapter, plain_job
from brimful.values.plan import Estimate
from brimful.values.strategy import Strategy

JOB = plain_job(load_model("llama-3.2-1b"), precision="bf16", seq_len=2048)
CARD = load_cluster("rtx-4090", memory_limit_bytes=None)
NF4 = Adapter(
    rank=16, alpha=32.0, targets=("all-linear",), trained_modules=(), dtype="same",
    base="nf4-double", upcast="none", input_requires_grad=False,
)  # fmt: skip
LEAN = leanest(
    JOB,
    Strategy(micro_batch=4, activation_checkpointing="none", loss_chunks=1, attention="sdpa"),
)


def fits(job, strategy):
    made = predict(Point(job, strategy), CARD)
    return isinstance(made, Estimate) and made.fits


def test_the_longest_text_holds_and_a_longer_one_does_not():
    found = longest(JOB, CARD, LEAN)
    at = msgspec.structs.replace(JOB, seq_len=found.number)
    assert not found.is_all
    assert found.number > JOB.seq_len
    assert as_it_fits(at, CARD, found.strategy) is not None
    assert not fits(msgspec.structs.replace(JOB, seq_len=found.number * 3 // 2), LEAN)


def test_the_most_texts_at_once_hold_and_more_do_not():
    found = largest_micro_batch(JOB, CARD, LEAN)
    more = found.number * 3 // 2
    wide = msgspec.structs.replace(JOB, global_batch=more)
    assert found.number > 1
    assert found.strategy.micro_batch == found.number
    assert not fits(wide, msgspec.structs.replace(LEAN, micro_batch=more))


def test_what_a_replay_lacks_is_given_up_however_much_it_is():
    """By live bytes 8,192 tokens fit; replayed, not even a fifth less does."""
    job = plain_job(load_model("llama-3.1-8b"), precision="bf16-mixed", seq_len=2048)
    job = msgspec.structs.replace(job, method="qlora", adapter=NF4, global_batch=8)
    card = load_cluster("rtx-4070", memory_limit_bytes=None)
    found = longest(job, card, leanest(job, LEAN))
    assert found.number > job.seq_len
    at = msgspec.structs.replace(job, seq_len=found.number)
    assert as_it_fits(at, card, found.strategy) is not None


def test_positions_end_before_the_memory_does():
    small = plain_job(load_model("gpt2"), seq_len=512)
    large = load_cluster("rtx-4090", memory_limit_bytes=None)
    found = longest(small, large, LEAN)
    assert (found.number, found.is_all) == (small.model.max_seq_len, True)


def test_nothing_more_fits_where_nothing_does():
    tight = load_cluster("rtx-4090", memory_limit_bytes=2**30)
    assert longest(JOB, tight, LEAN) is None


def test_where_nothing_more_fits_what_is_asked_is_the_most():
    """Positions end with the text that is asked about; the texts at once are those that hold."""
    small = plain_job(load_model("gpt2"), seq_len=1000)
    found = longest(small, CARD, LEAN)
    assert (found.number, found.is_all) == (small.model.max_seq_len // 256 * 256, True)
    long = msgspec.structs.replace(small, seq_len=small.model.max_seq_len)
    assert longest(long, CARD, LEAN).is_all
    few = load_cluster("rtx-4090", memory_limit_bytes=predicted_peak(JOB, CARD, LEAN) + 2**30)
    assert largest_micro_batch(JOB, few, LEAN).number == 1


def test_a_larger_micro_batch_accumulates_as_the_batch_asks():
    job = msgspec.structs.replace(JOB, global_batch=64)
    assert largest_micro_batch(job, CARD, LEAN).number < largest_micro_batch(JOB, CARD, LEAN).number
