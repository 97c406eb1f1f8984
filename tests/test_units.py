import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import units
from brimful.errors import InputError


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1.5GiB", 3 * 2**29),
        ("80GB", 80 * 10**9),
        (" 80 gb ", 80 * 10**9),
        ("512", 512),
        ("1e3B", 1000),
        ("2TiB", 2**41),
        (".5kib", 512),
    ],
)
def test_sizes_are_read(text, num_bytes):
    assert units.parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1.2.3GB", "5 bananas", "1e999", "1e999TiB"])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(InputError, match=r"write it like 1\.5GiB"):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "count"), [("300k", 300_000), ("1B", 10**9), ("1.5T", 15 * 10**11)]
)
def test_counts_are_read_in_powers_of_1000(text, count):
    assert units.parse_count(text) == count


@given(st.integers(0, 2**60))
def test_printed_sizes_read_back_within_their_last_digit(num_bytes):
    printed = units.format_bytes(num_bytes)
    assert units.parse_bytes(printed) == pytest.approx(num_bytes, rel=6e-3)
    assert units.format_bytes(-num_bytes) == (f"-{printed}" if num_bytes else printed)


@given(st.integers(0, 10**18))
def test_printed_counts_read_back_within_three_digits(count):
    assert units.parse_count(units.format_count(count)) == pytest.approx(count, rel=6e-3)


def test_three_digits_never_turn_into_an_exponent():
    assert units.format_count(999_700_000) == "1000M"
    assert units.format_rate(999.9e12, "FLOP") == "1000 TFLOP/s"


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0.00123, "1.23 ms"),
        (0.9997, "1.00 s"),
        (119, "119.00 s"),
        (600, "10.0 min"),
        (7200, "2.0 h"),
    ],
)
def test_times_are_printed_in_the_unit_that_reads_best(time_s, text):
    assert units.format_seconds(time_s) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(1.69e12, "1.69 TFLOP/s"), (33.5e9, "33.5 GFLOP/s"), (12, "12 FLOP/s")]
)
def test_rates_are_printed_in_powers_of_1000(rate, text):
    assert units.format_rate(rate, "FLOP") == text


@pytest.mark.parametrize(
    ("value", "reference", "text"),
    [(101, 100, "+1.00 %"), (99, 100, "-1.00 %"), (0, 0, "0.00 %"), (1, 0, "-")],
)
def test_errors_are_signed_percents(value, reference, text):
    assert units.format_signed_percent(value, reference) == text


def test_a_limit_is_a_size_or_a_part():
    assert units.parse_limit("1.5GiB") == 1.5 * 2**30
    assert units.parse_limit(" 70 % ") == units.Share(0.7)
    for text in ("0%", "101%", "-5%", "7%0", "1GiB%"):
        with pytest.raises(InputError):
            units.parse_limit(text)


def test_text_of_some_size_has_a_quarter_as_many_tokens():
    assert units.tokens_of_bytes("30MB") == 7_500_000
    assert units.tokens_of_bytes("1GiB") == 2**28
    assert units.tokens_of_bytes("30B") is None  # billions
    assert units.tokens_of_bytes("30M") is None
