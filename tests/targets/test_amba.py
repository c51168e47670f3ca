"""The formulas of the chips, held against the same formulas written out again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxsparse import targets
from onnxsparse.errors import OptionError
from onnxsparse.graph.weights import Convolution
from onnxsparse.targets.amba import CHIPS, Bits, effective_kernel, effective_length, target_density
from tests.messages import refusing

CV2, CV22, CV2FS = ("cv2", "cv2aq"), ("cv22", "cv22aq", "cv25", "cv25aq"), ("cv2fs", "cv22fs")


def density_by_rule(chip, kh, kw, cin, cout, sh, sw, depthwise, d_in=8, d_out=8, d_kernel=8):
    f0 = 1 if chip in CV2 else 2
    f3 = 0.03515625 if chip in CV2FS else 0.0234375
    d_tr = 8 if d_in == d_out == d_kernel == 8 else 16
    channels = cout / cin if depthwise else cout
    least = min(0.046875, 0.03125 * (cin / cout) * sh * (d_in / d_tr), f3 * (cin / cout) * sh * sw * (d_in / d_out))
    return min(1, 1 / (f0 * least * kw * kh * channels * d_kernel / 8))


def length_by_rule(k, dilation):
    length = k + (k - 1) * (dilation - 1)
    if dilation <= 5:
        rest = length % 11
        return 11 if rest == 0 else rest
    if dilation + 1 > 11:
        return 1
    position = 0
    last = 0
    while position < length:
        last = min(dilation + 1, length - position)
        position = position + last + dilation - 1
    return last


def test_the_families():
    assert set(CHIPS) == {*CV2, *CV22, *CV2FS}


@given(
    st.sampled_from(sorted(CHIPS)), st.integers(1, 9), st.integers(1, 9), st.integers(1, 512), st.integers(1, 512),
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 12),
)  # fmt: skip
def test_target_densities(chip, kh, kw, cin, cout, sh, sw, dilation):
    layer = Convolution((kh, kw), cin, cout, 1, (sh, sw), (dilation, 1))
    wanted = density_by_rule(chip, length_by_rule(kh, dilation), kw % 11 or 11, cin, cout, sh, sw, False)
    assert target_density(chip, layer) == pytest.approx(wanted, rel=1e-12)
    assert 0 < wanted <= 1


def test_a_depthwise_layer_and_other_bits():
    layer = Convolution((3, 3), 1, 1, 64, (1, 1))
    assert layer.depthwise
    assert target_density("cv22", layer) == pytest.approx(density_by_rule("cv22", 3, 3, 1, 1, 1, 1, True))
    wide = target_density("cv22", Convolution((3, 3), 64, 64), Bits(data=16))
    assert wide == pytest.approx(density_by_rule("cv22", 3, 3, 64, 64, 1, 1, False, d_in=16))


def test_one_channel_in_one_group_is_not_depthwise():
    assert not Convolution((3, 3), 1, 32, 1).depthwise


@pytest.mark.parametrize(
    ("kernel", "dilation", "left"),
    [
        (3, 1, 3),
        (11, 1, 11),
        (12, 1, 1),
        (3, 5, 11),
        (5, 5, 10),
        (3, 6, 1),
        (3, 10, 1),
        (5, 8, 1),
        (3, 11, 1),
        (3, 12, 1),
    ],
)
def test_effective_kernels_by_hand(kernel, dilation, left):
    assert length_by_rule(kernel, dilation) == left
    assert effective_length(kernel, dilation) == left


def test_a_kernel_without_dilations_or_of_one_axis():
    assert effective_kernel(Convolution((3, 5), 4, 4)) == (3, 5)
    assert effective_kernel(Convolution((25,), 4, 4)) == (3,)


@pytest.mark.parametrize("text", ["amba", *(f"amba:{chip}" for chip in CHIPS)])
def test_texts(text):
    assert targets.parse(text).text == text


def test_a_chip_that_is_none():
    with refusing(OptionError):
        targets.parse("amba:cv2x")
