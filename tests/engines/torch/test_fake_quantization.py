"""Fake quantization in torch: the numbers of the definition in numpy, bit for bit, and gradients by the book."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

torch = pytest.importorskip("torch")

from onnxsparse.engines.torch.fake_quantization import averaged, fake, from_range, of_weight, ranges
from onnxsparse.math import quantization as definition
from onnxsparse.math.quantization import ACTIVATIONS, SYMMETRIC_ACTIVATIONS, WEIGHTS, Grid

GRIDS = [
    WEIGHTS,
    ACTIVATIONS,
    SYMMETRIC_ACTIVATIONS,
    Grid(4),
    Grid(8, signed=False),
    Grid(8, symmetric=False, reduced=True),
    Grid(16, signed=False, symmetric=False),
    Grid(32),
]
ALONG = [(None, 0), (0, 0), (1, 0), (-1, 0), (1, 3)]
NUMBERS = st.floats(-1e3, 1e3, width=32) | st.sampled_from([0.0, -0.0, 1e-30, 3e38, np.inf, -np.inf, np.nan])


@given(arrays.arrays(np.float32, (4, 7, 2), elements=NUMBERS), st.sampled_from(GRIDS), st.sampled_from(ALONG))
@settings(max_examples=60, deadline=None)
def test_numbers_and_scales_are_those_of_the_definition(numbers: Any, grid: Grid, along: Any) -> None:
    axis, block = along
    calm = np.where(np.isfinite(numbers), numbers, 0)
    calm[2] = 0
    wanted = definition.of_weight(calm, grid, axis, block)
    scale, zero_point = of_weight(torch.tensor(calm), grid, axis, block)
    assert np.array_equal(scale.numpy(), wanted.scale)
    assert np.array_equal(zero_point.numpy(), wanted.zero_point)
    for one in (numbers, calm / np.float32(2)):
        found = fake(torch.tensor(one), scale, zero_point, grid, axis, block).numpy()
        assert np.array_equal(found.view(np.int32), wanted.fake(one).view(np.int32))


@given(st.floats(-1e4, 1e4, width=32), st.floats(-1e4, 1e4, width=32), st.sampled_from(GRIDS))
@settings(max_examples=60, deadline=None)
def test_scales_of_ranges_are_those_of_the_definition(low: float, high: float, grid: Grid) -> None:
    wanted = definition.from_range(low, high, grid)
    scale, zero_point = from_range(torch.tensor(low), torch.tensor(high), grid)
    assert (scale.item(), zero_point.item()) == (wanted.scale.item(), wanted.zero_point.item())


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_gradients_go_through_unless_clipped_in_the_type_that_came_in(kind: str) -> None:
    x = torch.tensor([-3.0, -0.4, 0.0, 0.26, 1.0, 9.0], dtype=getattr(torch, kind), requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = fake(x, torch.tensor(0.5), torch.tensor(0), Grid(3))
    rounded.backward(torch.arange(1, 7).to(x.dtype))
    assert rounded.dtype == x.dtype
    assert rounded.tolist() == [-2.0, -0.5, 0.0, 0.5, 1.0, 1.5]
    assert x.grad.tolist() == [0, 2, 3, 4, 5, 0]


def test_a_scale_that_is_learned_gets_the_gradient_of_lsq() -> None:
    x, grid = torch.tensor([[-3.0, -0.4, 0.1, 0.3], [9.0, 1.0, 0.6, 0.0]]), Grid(3)
    scale = torch.tensor([0.5, 1.0], requires_grad=True)
    fake(x, scale, torch.zeros(2, dtype=torch.int32), grid, 0).sum().backward()
    first = -4 + (-1 + 0.8) + (0 - 0.2) + (1 - 0.6)
    second = 3 + 0 + (1 - 0.6) + 0
    assert scale.grad.tolist() == pytest.approx([first / (4 * 3) ** 0.5, second / (4 * 3) ** 0.5])


def test_a_learned_scale_finds_the_one_that_costs_least() -> None:
    torch.manual_seed(0)
    x = torch.randn(4096)

    def cost(scale: Any) -> Any:
        return ((fake(x, scale, torch.tensor(0), Grid(3)) - x) ** 2).mean()

    scale = torch.tensor(2.0, requires_grad=True)
    optimizer = torch.optim.SGD([scale], lr=20.0)
    for _ in range(200):
        optimizer.zero_grad()
        cost(scale).backward()
        optimizer.step()
    assert cost(scale.detach()) < 1.02 * min(cost(torch.tensor(one)) for one in np.arange(0.2, 1.5, 0.02))


def test_ranges_move_by_a_share_of_each_batch() -> None:
    known = torch.tensor(np.inf), torch.tensor(-np.inf)
    known = averaged(known, ranges(torch.tensor([-1.0, 2.0])))
    known = averaged(known, ranges(torch.tensor([-3.0, 1.0])), 0.25)
    assert [float(one) for one in known] == [-1.5, 1.75]


def test_gradients_pass_where_torch_functions_are_transformed() -> None:
    def loss(x: Any) -> Any:
        return fake(x, torch.tensor(0.5), torch.tensor(0), WEIGHTS).square().sum()

    assert torch.func.grad(loss)(torch.tensor([0.6, 100.0])).tolist() == [1.0, 0.0]
