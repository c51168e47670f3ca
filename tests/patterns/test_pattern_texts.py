"""What a pattern is called, and how many units it counts."""

from __future__ import annotations

import pytest

from onnxsparse import patterns
from onnxsparse.errors import OptionError
from tests.cases import for_each
from tests.messages import refusing

TEXTS = [
    "unstructured",
    "2:4",
    "1:2",
    "5:32",
    "2:4:transposable",
    "4:8:transposable-greedy",
    "block:4x1",
    "block:1x16",
    "filter",
    "channel",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_text_is_canonical(text):
    assert patterns.parse(text).text == text
    assert patterns.parse(patterns.parse(text).text) == patterns.parse(text)


def test_leading_zeros_and_spaces_are_read():
    assert patterns.parse(" 02:04 ").text == "2:4"
    assert patterns.parse("02:4:transposable ").text == "2:4:transposable"
    assert patterns.parse("block:04x1").text == "block:4x1"


@for_each(
    "text",
    [
        "4:4",
        "0:4",
        "5:4",
        "2:9999999",
        "2:2000",
        "block",
        "block:0x4",
        "block:4",
        "block:axb",
        "2;4",
        "",
        "filters:",
        "-2:4",
    ],
)
def test_what_means_nothing_is_refused(text):
    with pytest.raises(OptionError):
        patterns.parse(text)


def test_the_nearest_is_offered():
    with refusing(OptionError):
        patterns.parse("unstructed")


@pytest.mark.parametrize(
    ("text", "units", "size", "ragged"),
    [
        ("unstructured", 2 * 6 * 7 * 9, 1, 0),
        ("2:4", 2 * 6 * 1 * 9, 4, 2 * 6 * 3 * 9),
        ("2:4:transposable", 2 * 1 * 1 * 9, 16, 2 * 9 * (42 - 16)),
        ("block:4x3", 2 * 1 * 2 * 9, 12, 2 * 9 * (42 - 24)),
        ("filter", 12, 63, 0),
        ("channel", 14, 54, 0),
    ],
)
def test_units(text, units, size, ragged):
    pattern, shape = patterns.parse(text), (2, 6, 7, 9)
    assert (pattern.units(shape), pattern.unit_size(shape), pattern.ragged(shape)) == (units, size, ragged)


@pytest.mark.parametrize(("sparsity", "count"), [(0, 0), (0.5, 5), (0.75, 8), (0.94, 9), (0.95, 10), (1, 10)])
def test_counts_round_half_up(sparsity, count):
    assert patterns.parse("unstructured").drop_count((1, 2, 5, 1), sparsity) == count


def test_a_filter_and_a_channel_always_stay():
    assert patterns.parse("filter").drop_count((1, 4, 3, 1), 1.0) == 3
    assert patterns.parse("channel").drop_count((2, 4, 3, 1), 1.0) == 5
    assert patterns.parse("channel").drop_count((1, 4, 0, 1), 1.0) == 0


def test_n_of_m_takes_no_sparsity():
    pattern = patterns.parse("2:4")
    assert not pattern.takes_sparsity
    assert pattern.drop_count((1, 3, 10, 2), None) == 3 * 2 * 2 * 2
    both = patterns.parse("2:4:transposable")
    assert not both.takes_sparsity
    assert both.dropped((1, 9, 10, 2), both.drop_count((1, 9, 10, 2), None)) == 8 * 8 * 2 // 2


@pytest.mark.parametrize("sparsity", [None, -0.1, 1.1, float("nan")])
def test_a_sparsity_lies_between_0_and_1(sparsity):
    with refusing(OptionError):
        patterns.parse("unstructured").drop_count((1, 1, 4, 1), sparsity)
