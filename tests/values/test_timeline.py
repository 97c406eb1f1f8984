import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brimful.values.timeline import NUM_BUCKETS, thin


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=3000))
def test_thinning_keeps_every_peak_and_invents_nothing(samples):
    live = np.array(samples)
    line = thin(live, phase_starts=[0], phases=["load"])
    assert max(line.live_bytes) == max(samples)
    assert min(line.live_bytes) == min(samples)
    assert list(line.event) == sorted(set(line.event))
    assert all(samples[e] == b for e, b in zip(line.event, line.live_bytes, strict=True))
    assert len(line.event) <= 2 * NUM_BUCKETS


def test_a_short_series_is_kept_whole():
    line = thin(np.arange(10), phase_starts=[0, 4], phases=["load", "step 1 forward"])
    assert line.event == tuple(range(10))
    assert line.phase_starts == (0, 4)
    assert line.phases == ("load", "step 1 forward")


def test_a_long_series_keeps_its_spikes():
    live = np.zeros(100_000, dtype=np.int64)
    live[77_777] = 5
    assert max(thin(live, phase_starts=[0], phases=["load"]).live_bytes) == 5


def test_nothing_recorded_gives_an_empty_line():
    assert thin(np.array([], dtype=np.int64), phase_starts=[0], phases=["load"]).event == ()
