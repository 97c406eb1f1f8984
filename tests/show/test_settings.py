"""Settings in words: what two strategies differ in is named, whatever it is."""

from msgspec.structs import replace

from brimful.show.settings import differing_words
from samples import make_job, make_strategy


def test_when_gradients_are_reduced_is_named_where_nothing_else_differs():
    job = make_job(global_batch=32)
    held = replace(make_strategy(micro_batch=1), zero=3, dp_shard=4, accumulate="hold")
    each = replace(held, accumulate="reduce-each")
    assert differing_words(job, held, each) == (
        "gradients reduced after each micro-batch, without no_sync",
    )
    assert any("(no_sync)" in words for words in differing_words(job, each, held))
