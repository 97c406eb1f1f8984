"""Small plots: each point is what asking for it says, and where it breaks is where it breaks."""

import html
import re
from urllib.parse import parse_qsl, urlsplit

import pytest

from brimful.errors import InputError
from brimful.web.answers import answer
from brimful.web.state import read_state
from brimful.web.sweep_plot import sweep_figure
from brimful.web.sweeps import AXES, OF_INFERENCE, OF_TRAINING, sweep
from brimful.web.words import words_of

EN = words_of("en")


@pytest.mark.few(3)
@pytest.mark.parametrize("axis", OF_TRAINING)
def test_a_point_is_what_asking_for_it_says(axis):
    state = read_state({"gpus": "2xa100-80gb"})
    found = sweep(state, axis)
    assert sum(point.is_here for point in found.points) == 1
    for point in (found.points[0], found.points[-1]):
        values = answer(state.changed(**point.changes), "tensors", EN)["values"]
        assert values["predicted_peak_allocated_bytes"] == point.peak_bytes


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "query",
    [
        {"gpus": "12xa100-80gb", "what": "full"},
        {"gpus": "8xa100-80gb", "what": "full", "zero": "1", "global_batch": "64"},
        {"gpus": "4xa100-80gb", "what": "full", "zero": "0", "dp_replicate": "4"},
        {"gpus": "4xa100-80gb", "what": "full", "tp": "2", "micro_batch": "2"},
        {"activation_checkpointing": "selective"},
        {"activation_checkpointing": "full:5", "lora_rank": "12", "seq_len": "3000"},
        {"micro_batch": "3"},
    ],
)
def test_the_point_that_is_asked_is_what_is_asked(query):
    state = read_state(query)
    values = answer(state, "tensors", EN)["values"]
    for axis in OF_TRAINING:
        if axis == "lora_rank" and state.what == "full":
            continue
        here = [point for point in sweep(state, axis).points if point.is_here]
        if axis == "activation_checkpointing" and query.get(axis) == "selective":
            assert not here  # selective is no number of blocks
            continue
        (point,) = here
        assert point.changes == {}
        assert point.peak_bytes == values["predicted_peak_allocated_bytes"]


def test_the_batch_is_kept_where_the_devices_that_share_it_allow_it():
    state = read_state({"gpus": "8xa100-80gb", "what": "full", "tp": "4", "global_batch": "4"})
    points = {point.value: point for point in sweep(state, "micro_batch").points}
    assert points[2].changes == {"micro_batch": "2"}
    assert points[4].changes == {"micro_batch": "4", "global_batch": ""}


def test_more_of_it_never_takes_less_but_of_what_shares_or_recomputes():
    for axis in OF_TRAINING:
        found = sweep(read_state({"gpus": "2xa100-80gb"}), axis)
        peaks = [point.peak_bytes for point in found.points]
        assert peaks == sorted(peaks, reverse=found.falls)


def test_it_breaks_between_what_fits_and_what_does_not():
    found = sweep(read_state({}), "seq_len")
    short = {point.value for point in found.points if point.peak_bytes > point.limit_bytes}
    assert found.breaks_at == min(short)
    assert {point.value for point in found.points} - short == {
        point.value for point in found.points if point.value < found.breaks_at
    }


def test_a_point_is_a_link_that_takes_it():
    state = read_state({"micro_batch": "1"})
    drawn = sweep_figure(sweep(state, "micro_batch"), state, EN)
    links = [html.unescape(link) for link in re.findall(r'href="([^"]+)"', drawn)]
    taken = [dict(parse_qsl(urlsplit(link).query)) for link in links]
    assert [each.get("micro_batch") for each in taken][:3] == ["1", "2", "4"]
    for each in taken:
        each.pop("lang")
        read_state(each)


def test_what_no_adapter_has_is_not_drawn():
    with pytest.raises(InputError, match="no adapter"):
        sweep(read_state({"what": "full"}), "lora_rank")


@pytest.mark.parametrize("gpus", ["rtx-4090", "2xrtx-4090"])
def test_text_that_is_written_is_swept_by_what_it_has(gpus):
    state = read_state({"what": "inference", "gpus": gpus, "seq_len": "3000"})
    for axis in AXES:
        if axis not in OF_INFERENCE:
            with pytest.raises(InputError, match="has no plot of"):
                sweep(state, axis)
            continue
        found = sweep(state, axis)
        (here,) = [point for point in found.points if point.is_here]
        assert here.changes == {}
        peaks = [point.peak_bytes for point in found.points]
        assert peaks == sorted(peaks, reverse=found.falls)
        said = answer(state.changed(**found.points[0].changes), "tensors", EN)
        assert said["verdict"] == "FITS"
